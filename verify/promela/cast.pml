#ifndef N
#define N 7
#endif
#ifndef K
#define K 2
#endif
#ifndef D
#define D 0
#endif
#ifndef L
#define L 0
#endif
#ifndef BUF
#define BUF 4
#endif
#ifndef CASTS
#define CASTS 1
#endif

c_decl {
    enum { NODES = N, ARITY = K };
    \#include "tree.h"
}

#define NONE N
#define bit(i) (1 << (i))
#define has(set, i) (((set) >> (i)) & 1)
#define without(set, i) ((set) & ~(1 << (i)))

#define MESSAGE cast, skipped, dests, seen, hi, lo
chan channel[N] = [BUF] of { byte, bool, short, short, int, int };
#ifdef KEEP
#define KEPT k_cast, k_skipped, k_dests, k_seen, k_hi, k_lo
hidden byte k_cast;
hidden bool k_skipped;
hidden short k_dests, k_seen;
hidden int k_hi, k_lo;
chan memory[N] = [KEEP] of { byte, bool, short, short, int, int };
#endif

short dead;
short got[CASTS];
byte source[CASTS];
byte downs;
byte busy;

inline forget() { seen = 0; hi = 0; lo = 0; skipped = false; tried = 0 }

inline instead() {
    c_code { Pnode->d = lowest(Pnode->dests); };
    c_code { Pnode->dests = Pnode->dests & ~(1 << Pnode->d) | children(Pnode->d); };
    forget()
}

#define DEAD_END c_expr { (now.dead & neighbours(Pnode->me)) >> lowest(Pnode->dests) & 1 }
#ifdef NOBACK
#define BACKTRACK false
#else
#define BACKTRACK true
#endif

proctype node(byte me; byte starts) {
    byte cast, to, d;
    bool skipped;
    short dests, seen, kids, tried;
    int hi, lo;
    chan in = channel[me];

end:
    do
    :: atomic {
        if
#ifdef KEEP
        :: memory[me]?MESSAGE
        :: empty(memory[me]) && nempty(in) -> in?MESSAGE
#else
        :: in?MESSAGE
#endif
        :: starts ->
            c_code { Pnode->cast = lowest(Pnode->starts); };
            starts = without(starts, cast);
            dests = bit(0)
        fi;
        busy++;
        if
        :: dests == 0 -> dests = bit(me)
        :: else
        fi;
think:
        to = NONE;
        do
        :: has(dests, me) ->
            dests = without(dests, me);
#ifdef NORESET
            tried = 0;
#else
            forget();
#endif
            if
#ifdef NOCHECK
            :: true ->
#else
            :: has(got[cast], me)
            :: else ->
#endif
                assert(!has(got[cast], me));
                got[cast] = got[cast] | bit(me);
                c_code { Pnode->kids = children(Pnode->me); }
            fi
        :: dests && !has(dests, me) && DEAD_END ->
            instead()
        :: dests && !has(dests, me) && !DEAD_END ->
            c_code { Pnode->d = lowest(Pnode->dests); };
            seen = seen | bit(me);
            c_code { Pnode->to = best(Pnode->me, Pnode->d, now.dead | Pnode->seen | Pnode->tried); };
            if
            :: to != NONE && downs < L ->
                downs++;
                tried = tried | bit(to);
                skipped = true
            :: to != NONE ->
                c_code [height(Pnode->hi, Pnode->lo) < NODES - 1] { push(&Pnode->hi, &Pnode->lo, Pnode->me); };
                break
            :: to == NONE && lo && BACKTRACK ->
                c_code { Pnode->to = pop(&Pnode->hi, &Pnode->lo); };
                break
            :: to == NONE && !(lo && BACKTRACK) && skipped -> forget()
            :: to == NONE && !(lo && BACKTRACK) && !skipped -> instead()
            fi
        :: dests == 0 && kids ->
            c_code { Pnode->d = lowest(Pnode->kids); };
            kids = without(kids, d);
            forget();
            if
            :: has(dead, d) -> c_code { Pnode->dests = children(Pnode->d); }
            :: !has(dead, d) && downs < L -> downs++; c_code { Pnode->dests = 1 << Pnode->d | children(Pnode->d); }
            :: !has(dead, d) -> to = d; break
            fi
        :: dests == 0 && kids == 0 -> break
        od;
        d = 0;
        tried = 0;
        if
        :: to == NONE ->
            forget();
            to = 0;
            cast = 0;
            busy--;
            goto end
        :: else
        fi;
    }
send:
    atomic {
        if
        :: channel[to]!MESSAGE
#ifdef KEEP
        :: in?KEPT ->
            assert(nfull(memory[me]));
            memory[me]!KEPT;
            goto send
#endif
        fi;
        dests = 0;
        forget();
        goto think
    }
    od
}

init {
    byte i, c, n;
    short sources;
    atomic {
        do
        :: c < CASTS ->
#ifdef ANY
            select(n : 0 .. N - 1);
#endif
            source[c] = n;
            sources = sources | bit(n);
            c++
        :: c == CASTS -> break
        od;
        n = 0;
        do
        :: i < N && n < D && !has(sources, i) -> dead = dead | bit(i); n++; i++
        :: i < N -> i++
        :: i == N -> break
        od;
        i = 0;
        do
        :: i < N ->
            n = 0;
            c = 0;
            do
            :: c < CASTS -> n = n | ((source[c] == i) << c); c++
            :: c == CASTS -> break
            od;
            run node(i, n);
            i++
        :: i == N -> break
        od;
        c = 0;
        n = 0;
        sources = 0
    }
    timeout;
    if
    :: busy
    :: !busy ->
        do
        :: c < CASTS ->
            c_code { Pinit->sources = connected(now.source[Pinit->c], now.dead); };
            assert(got[c] == sources);
            c++
        :: c == CASTS -> break
        od
    fi
}
