#!/usr/bin/env bash
# Installs a build into a temporary folder, builds a program against it and runs both. usage: run.sh BUILD_DIR
set -euo pipefail
here="$(cd "$(dirname "$0")" && pwd)"
tmp="$(mktemp -d)"
trap 'rm -rf "$tmp"' EXIT
cmake --install "$1" --prefix "$tmp/prefix" >/dev/null
cmake -S "$here/consumer" -B "$tmp/build" -G Ninja -DCMAKE_PREFIX_PATH="$tmp/prefix" >"$tmp/log" 2>&1 || { cat "$tmp/log"; exit 1; }
cmake --build "$tmp/build" >"$tmp/log" 2>&1 || { cat "$tmp/log"; exit 1; }
out="$("$tmp/build/consumer")"
[ "$out" = "1 3 2 4" ] || { echo "unexpected: $out"; exit 1; }
"$tmp/prefix/bin/plumb" --version
