#pragma once
#include "kernels/embedding/embedding.h"

namespace plumb::cpu {

void embedding_forward(Context&, const EmbeddingForward&, Sites);
void embedding_backward(Context&, const EmbeddingBackward&, BackwardMode);

}  // namespace plumb::cpu
