// Inside the matmul only: the panel layouts and the microkernels that read them.
//
// A panel of B holds 32 columns, two groups of 16 side by side, as one linear stream over pairs of k:
//   bf16: a row of 32 dwords a pair, dword j = (B[j][2p] low half, B[j][2p+1] high half)         128 bytes
//   f32:  32 floats B[j][2p+1], then 32 floats B[j][2p]                                           256 bytes
// A block of A holds `rows` rows, k-major:
//   f32:  a pair is `rows` floats A[i][2p+1], then `rows` floats A[i][2p]   (FMA kernels, whatever A is stored as)
//   bf16: a pair is `rows` dwords, as in B                                  (vdpbf16ps)
// An odd K is padded by one zero on both sides.
#pragma once
#include <cstdint>

#include "kernels/core/context.h"
#include "kernels/core/dtype.h"
#include "kernels/matmul/matmul.h"

namespace plumb::matmul_detail {

inline constexpr int kGroupCols = 16;
inline constexpr int kPanelGroups = 2;
inline constexpr int kPanelCols = kGroupCols * kPanelGroups;
inline constexpr int kMaxTileRows = 14;
/// A block of A may be written this far past its end.
inline constexpr std::int64_t kBlockSlack = 64;

/// Bytes of one pair of k in a panel, and of all pairs of a depth.
constexpr std::int64_t pair_bytes(DType panel) { return kPanelCols * 2 * std::int64_t(bytes_of(panel)); }
constexpr std::int64_t panel_bytes(std::int64_t depth, DType panel) { return (depth + 1) / 2 * pair_bytes(panel); }
/// Byte offset of column group g when panels are `panel_stride` bytes apart.
constexpr std::int64_t group_offset(std::int64_t g, std::int64_t panel_stride) {
  return g / kPanelGroups * panel_stride + g % kPanelGroups * kGroupCols * 4;
}

/// One call of a microkernel: C (rows, 16 * groups) continues or starts its chains over `pairs` pairs of k.
struct Tile {
  const void* a = nullptr;  // a block of A
  const char* b = nullptr;  // the first column group at the first pair
  std::int64_t panel_stride = 0;
  float* c = nullptr;
  std::int64_t ldc = 0;
  std::int64_t pairs = 0;
  bool from_zero = false;   // start from +0, not from c
  BF16* rounded = nullptr;  // given to kernels that round only: the sums are stored here and not in c
  std::int64_t rounded_stride = 0;
  const char* prefetch = nullptr;
  std::int64_t prefetch_step = 0;  // bytes a pair
};
using TileFn = void (*)(const Tile&);

/// Fetches the lines of one pair far enough ahead in the stream of panels: hardware follows a stream only to the end of a page of 4 KiB,
/// and out-of-order execution sees no further than a few pairs where rows are many.
template <std::int64_t Bytes>
inline __attribute__((always_inline)) void prefetch_stream(const char* pair) {
  constexpr std::int64_t kAhead = 4096;
  constexpr std::int64_t kLine = 64;
#pragma GCC unroll 4
  for (std::int64_t i = 0; i < Bytes; i += kLine) __builtin_prefetch(pair + kAhead + i);
}

/// The microkernels of one instruction set for one panel type, by tile shape.
struct Kernels {
  int rows = 0;                              // of the tallest tile
  int groups = 0;                            // column groups of the tallest tile
  DType a = DType::f32;                      // layout of the blocks of A
  bool rounds = false;                       // Tile::rounded is understood
  int stream_groups[kMaxTileRows + 1] = {};  // groups at a time when all of A is one block of that many rows
  TileFn tile[kMaxTileRows + 1][3] = {};     // [rows][groups], prefetching
  TileFn stream[kMaxTileRows + 1][3] = {};   // the same for one linear stream of panels
};
const Kernels& kernels_avx2(DType panel);
const Kernels& kernels_avx512(DType panel);
const Kernels& kernels_avx512bf16();

/// Columns [first, first + count) of b, depth [k0, k1) with k0 even, into panels `panel_stride` bytes apart; absent
/// columns of the last panel's groups that are touched are zero.
void pack_panels(const MatmulOperand& b, std::int64_t first, std::int64_t count, std::int64_t k0, std::int64_t k1, char* panels,
                 std::int64_t panel_stride);
/// Rows [first, first + rows) of a, depth [k0, k1) with k0 even, into one block of the given layout (bf16 needs a bf16 a).
void pack_block(const MatmulOperand& a, std::int64_t first, int rows, std::int64_t k0, std::int64_t k1, DType layout, void* block);
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
};

/// Rows of A as `count` blocks, as even as possible (the first ones are a row taller), one behind the other.
class Blocks {
 public:
  Blocks() = default;
  Blocks(std::int64_t rows, std::int64_t count) : rows_(rows), count_(count), short_(rows / count), taller_(rows % count) {}
  std::int64_t rows() const { return rows_; }
  std::int64_t count() const { return count_; }
  std::int64_t first_row(std::int64_t b) const { return b * short_ + (b < taller_ ? b : taller_); }
  int rows_of(std::int64_t b) const { return int(short_) + (b < taller_ ? 1 : 0); }
  /// Where block b begins, in bytes, when blocks have `pairs` pairs of k.
  std::int64_t offset(std::int64_t b, std::int64_t pairs, DType layout) const {
    return first_row(b) * pairs * 2 * std::int64_t(bytes_of(layout)) + b * kBlockSlack;
  }
  std::int64_t bytes(std::int64_t pairs, DType layout) const { return offset(count_, pairs, layout); }

 private:
  std::int64_t rows_ = 0;
  std::int64_t count_ = 0;
  std::int64_t short_ = 0;
  std::int64_t taller_ = 0;
};
/// The same for rows [first, first + blocks.rows()).
void pack_blocks(const MatmulOperand& a, std::int64_t first, std::int64_t k0, std::int64_t k1, DType layout, const Blocks& blocks,
                 char* out);

/// What the row blocks fetch while they work on a column group: each its share of the next panel; a lone one its own half of it, or
/// nothing where the hardware follows one linear stream.
struct ReadAhead {
  /// Column group g of the panels at `panels`, `groups` at a time, of `pairs` pairs of k.
  ReadAhead(const char* panels, std::int64_t panel_stride, DType panel, std::int64_t g, int groups, std::int64_t blocks, std::int64_t pairs)
      : stream(blocks == 1 && groups == kPanelGroups),
        step(blocks == 1 ? pair_bytes(panel) : pair_bytes(panel) / kPanelGroups * groups / blocks),
        bytes(pairs * step),
        next(blocks == 1 ? panels + group_offset(g, panel_stride) + panel_stride
                         : panels + group_offset(g / kPanelGroups * kPanelGroups + kPanelGroups, panel_stride) +
                               g % kPanelGroups / groups * blocks * bytes) {}
  /// The kernel for the next row block; tells the tile what to fetch.
  TileFn use(const Kernels& k, int rows, int groups, Tile& tile) {
    tile.prefetch = next;
    tile.prefetch_step = step;
    next += bytes;
    return stream ? k.stream[rows][groups] : k.tile[rows][groups];
  }
  bool stream;
  std::int64_t step;
  std::int64_t bytes;
  const char* next;
};

/// The kernels of an instruction set for `rows` rows of an A of dtype `a` and panels of dtype `panel`.
const Kernels& kernels_for(Isa, DType a, DType panel, std::int64_t rows);
/// The whole product, split over the context's threads.
void matmul_cpu(Context&, const Matmul&);
/// The whole product on the calling thread, with the scratch of `thread`.
void matmul_cpu_on_thread(Context&, int thread, const Matmul&);

}  // namespace plumb::matmul_detail
