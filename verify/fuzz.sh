#!/bin/sh
# Fuzzes each target for so many seconds: verify/fuzz.sh [seconds] [target…]
# A crash stops it, and its input lies in verify/fuzz/artifacts. A stable compiler is enough.
set -eu
cd "$(dirname "$0")/fuzz"
seconds=${1:-60}
[ $# -gt 0 ] && shift
[ $# -gt 0 ] || set -- $(cargo fuzz list --fuzz-dir .)
for target; do
    mkdir -p "corpus/$target"
    # Seeds: inputs of a few lengths, so that the first steps are not wasted on growing them.
    for length in 20 60 200 600; do
        seed="corpus/$target/seed-$length"
        [ -e "$seed" ] || awk -v n="$length" 'BEGIN { for (i = 0; i < n; i++) printf "%c", 33 + (i * 7) % 90 }' >"$seed"
    done
    echo "== $target, $seconds s"
    RUSTC_BOOTSTRAP=1 cargo fuzz run --fuzz-dir . "$target" -- -use_value_profile=1 -max_len=2048 -max_total_time="$seconds" \
        -print_final_stats=1
done
