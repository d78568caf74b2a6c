#!/bin/sh
# Checks the models in verify/promela with SPIN: verify/spin.sh [all|faults]
# Without an argument what takes a minute on one core; `all` adds larger ones, 7 minutes and 3 GB; `faults` plants faults, each
# of which must be found. Fails if a result is other than expected here, or if a search was cut short.
set -eu
what=${1:-small}
case $what in small | all | faults) ;; *)
    echo "usage: verify/spin.sh [all|faults]" >&2
    exit 2
    ;;
esac

if ! command -v spin >/dev/null || ! command -v gcc >/dev/null; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        apt-get install -y spin gcc >/dev/null 2>&1 || { apt-get update && apt-get install -y spin gcc; } >/dev/null || true
    fi
    if ! command -v spin >/dev/null || ! command -v gcc >/dev/null; then
        echo "spin.sh: needs SPIN and gcc, on Debian: apt-get install spin gcc" >&2
        exit 2
    fi
fi

models=$(cd "$(dirname "$0")/promela" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
cd "$work"
depth=100000
wrong=0
printf '%-62s %10s %6s %7s  %s\n' what states depth seconds result

# check SEARCH EXPECTED FLAGS…: one line. SEARCH is `ends` (assertions, deadlocks; `whole`: and code that is never reached) or
# `cycles` (livelock: the models have no progress labels, so that every cycle is one that makes none).
check() {
    search=$1 expected=$2
    shift 2
    rm -f ./*
    cp "$models"/* .
    compile=-DSAFETY run=
    [ "$search" = cycles ] && compile=-DNP run=-l
    if ! spin -a "$@" cast.pml >out 2>&1 ||
        ! gcc -O2 -w -DCOLLAPSE -DVECTORSZ=4096 -DMEMLIM=3000 $compile -o pan pan.c >out 2>&1; then
        result="does not compile: $(head -n 1 out)"
    else
        ./pan -m$depth $run >out 2>&1 || true
        case $(grep '^pan:1:' out) in
        *'invalid end state'*) result=deadlock ;;
        *'non-progress cycle'*) result=livelock ;;
        *'got[c]==set'*) result='not delivered' ;;
        *'got[cast]>>me'*) result='delivered twice' ;;
        *'q_full(memory'*) result='memory overflows' ;;
        *'precondition false: height'*) result='path overflows' ;;
        '') result='errors: 0' ;;
        *) result=$(grep '^pan:1:' out) ;;
        esac
        # An error ends a search early; anything else that does makes its silence worthless.
        if [ "$result" = 'errors: 0' ]; then
            if grep -q -e 'search depth too small' -e 'MEMLIM' -e 'not completed' out || ! grep -q 'errors: 0' out; then
                result='incomplete'
            elif [ "$search" = whole ] && grep -A 99 '^unreached' out | grep 'state [0-9]' | grep -qv '"-end-"'; then
                result='code is never reached'
            fi
        fi
    fi
    [ "$result" = "$expected" ] && [ "$expected" != 'errors: 0' ] && note=', as expected' || note=
    [ "$result" = "$expected" ] || { wrong=$((wrong + 1)) note=", expected $expected"; }
    printf '%-62s %10s %6s %7s  %s\n' "$search $(echo "$*" | sed 's/-D//g')" \
        "$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' out)" "$(sed -n 's/.*depth reached \([0-9]*\).*/\1/p' out)" \
        "$(sed -n 's/^pan: elapsed time \([0-9.e+]*\) sec.*/\1/p' out)" "$result$note"
}

if [ "$what" = faults ]; then
    check ends 'not delivered' -DN=7 -DD=2 -DANY -DBUF=2 -DNO_RESET=1
    check ends 'not delivered' -DN=8 -DK=3 -DD=2 -DBUF=2 -DNO_RESET=2
    check ends 'delivered twice' -DN=7 -DL=1 -DBUF=2 -DNO_CHECK
    check ends 'not delivered' -DN=7 -DD=2 -DANY -DBUF=2 -DNO_BACKTRACK
    check cycles livelock -DN=7 -DD=2 -DBUF=2 -DNO_LIST=1
    check ends 'path overflows' -DN=7 -DD=2 -DBUF=2 -DNO_LIST=2
    check ends 'memory overflows' -DN=7 -DD=1 -DL=2 -DBUF=1 -DKEEP=1
    # The same trees without the faults.
    check ends 'errors: 0' -DN=7 -DD=2 -DANY -DBUF=2
    check ends 'errors: 0' -DN=8 -DK=3 -DD=2 -DBUF=2
    check ends 'errors: 0' -DN=7 -DL=1 -DBUF=2
    check cycles 'errors: 0' -DN=7 -DD=2 -DBUF=2
    # A search that is cut short must not pass for a whole one.
    depth=150
    check ends incomplete -DN=7 -DD=2 -DBUF=2
else
    check whole 'errors: 0' -DN=7 -DD=2 -DL=2 -DANY -DBUF=2
    check cycles 'errors: 0' -DN=7 -DD=2 -DL=2 -DANY -DBUF=2
    check ends 'errors: 0' -DN=7 -DD=1 -DCASTS=2 -DANY -DBUF=2
    check ends 'errors: 0' -DN=13 -DK=3 -DD=2 -DBUF=2
    check ends 'errors: 0' -DN=15 -DD=2 -DBUF=2
    check cycles 'errors: 0' -DN=15 -DD=2 -DBUF=2
    check ends 'errors: 0' -DN=15 -DD=1 -DANY -DBUF=2
    check ends 'errors: 0' -DN=15 -DL=1 -DBUF=2
    # 001 §4.2: too few slots, and senders wait for each other; how many are enough depends on the traffic.
    check ends deadlock -DN=7 -DL=2 -DBUF=0
    check ends deadlock -DN=7 -DD=1 -DL=2 -DBUF=1
    check ends 'errors: 0' -DN=7 -DD=1 -DL=2 -DBUF=2
    check ends deadlock -DN=7 -DD=1 -DL=2 -DCASTS=2 -DBUF=2
    check ends 'errors: 0' -DN=7 -DD=1 -DL=2 -DCASTS=2 -DBUF=3
    # Who never stops reading needs no slots.
    check ends 'errors: 0' -DN=7 -DD=1 -DL=2 -DBUF=0 -DKEEP=3
    check ends 'errors: 0' -DN=7 -DD=1 -DL=2 -DCASTS=2 -DBUF=1 -DKEEP=5
fi

if [ "$what" = all ]; then
    check ends 'errors: 0' -DN=15 -DD=3 -DBUF=2
    check ends 'errors: 0' -DN=15 -DD=2 -DANY -DBUF=2
    check ends 'errors: 0' -DN=15 -DL=2 -DBUF=2
    check ends 'errors: 0' -DN=15 -DD=2 -DL=1 -DBUF=2
    check cycles 'errors: 0' -DN=15 -DD=1 -DL=1 -DBUF=2
    check ends 'errors: 0' -DN=15 -DCASTS=2 -DBUF=2
    check ends 'errors: 0' -DN=7 -DD=1 -DL=1 -DCASTS=2 -DANY -DBUF=2
    check ends deadlock -DN=15 -DD=2 -DBUF=0
    check ends deadlock -DN=15 -DD=1 -DL=2 -DBUF=1
    check ends 'errors: 0' -DN=15 -DD=1 -DL=2 -DBUF=2
    check ends 'errors: 0' -DN=15 -DD=3 -DBUF=1
    check ends 'errors: 0' -DN=15 -DD=2 -DBUF=0 -DKEEP=3
fi

[ "$wrong" = 0 ] || { echo "spin.sh: $wrong other than expected" >&2; exit 1; }
