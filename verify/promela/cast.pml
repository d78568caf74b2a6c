/* Broadcast and multicast over the k-ary sibling tree: ST-4 and ST-7, 001 §3 and §4.
 *
 * One channel for each node, as in 001 §4.1. A broadcast goes to the children. What a dead child can no longer pass on is
 * encapsulated in a multicast to its children, and where one of those is dead too, its children take its place, and so on.
 * A multicast visits its destinations in turn, each time by the cheapest neighbour that lives and is not in the transit list;
 * without one it goes back to whom it came from. From a node other than the root, a broadcast begins as a multicast to the root.
 *
 * Checked in every order of steps: nobody delivers twice; the path never overflows; once all is quiet, whoever hangs together
 * with the source by links of living neighbours has delivered; nobody waits for ever; nothing goes round for ever.
 *
 *   N, K       nodes (at most 15: a path has four bits for each) and children of a node
 *   D          at most so many nodes are dead from the start, each set of them tried, a source never among them
 *   L          at most so many times a link is down as a message is about to go over it
 *   CASTS      broadcasts at the same time, from the root, or with ANY from each choice of nodes
 *   BUF        slots of a channel
 *   KEEP       a node that finds no room reads on meanwhile, and keeps up to so many messages in its own memory
 *   NO_…       faults, planted to see that they are found
 *
 * Where we differ from 001, and why:
 * - The transit list begins anew at each destination. The paper never resets it: see NO_RESET.
 * - A link may be down although the node behind it lives, and the sender cannot tell: so the multicast names the child as well
 *   as its children, and some are reached twice. Each drops what it has already.
 * - A search that met a link that was down may have missed what is there: the node where it began starts it once more.
 * - Going back never fails: the link has carried the message the other way, and the layer below repeats until it gets through.
 *
 * The deadlock of 001 §4.2. A node sends before it reads again, so it stands still while the next one's channel is full. Seven
 * nodes, one slot, 1 dead. The root's link to 2 is down for a moment, so it sends a multicast to {2, 5, 6}; 2 and 5 have it, and
 * 5 has it in hand for 6. The multicast to {3, 4}, the children of 1, came by 2 to 6; the link from there to 3 is down, so 6 has
 * it in hand for 5. And 2 has put its broadcast into the one slot of 5 and the one slot of 6: 5 waits for 6, and 6 for 5. What
 * runs down the tree cannot close such a circle; detours run round the rings and upwards, and can. More slots move the point
 * and no more: two slots are enough here for one broadcast, two broadcasts need three. With KEEP one is enough, or none.
 */

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
#ifndef CASTS
#define CASTS 1
#endif
#ifndef BUF
#define BUF 4
#endif
#if N < 2 || N > 15
#error "N is from 2 to 15"
#endif

c_decl {
    enum { NODES = N, ARITY = K };
    \#include "tree.h"
}

#define NONE N
#define bit(i) (1 << (i))
#define has(set, i) (((set) >> (i)) & 1)
#define without(set, i) ((set) & ~(1 << (i)))

/* Which broadcast; whether a link was down on the way; destinations still to be reached, none in a plain broadcast;
   the transit list: who has seen it since the last destination, and the path back (tree.h). */
#define MESSAGE cast, skipped, dests, seen, hi, lo
#define FORMAT byte, bool, short, short, int, int
chan channel[N] = [BUF] of { FORMAT };

#ifdef KEEP
chan memory[N] = [KEEP] of { FORMAT };
/* On their way from channel to memory within one step: no state. */
#define KEPT k_cast, k_skipped, k_dests, k_seen, k_hi, k_lo
hidden byte k_cast, k_skipped;
hidden short k_dests, k_seen;
hidden int k_hi, k_lo;
#endif

short dead;         /* fail-stop, and known to neighbours: detecting it is not this protocol's work */
short got[CASTS];   /* who has delivered */
byte source[CASTS];
byte downs;         /* how often a link was down so far */
byte busy;          /* nodes with a message in hand: none when all is quiet */

inline forget() { seen = 0; hi = 0; lo = 0; skipped = false; tried = 0 }

#if NO_RESET == 1   /* 001's list: nothing is ever taken off it, but by going back */
#define reset() tried = 0
#elif NO_RESET == 2 /* the path begins anew, but who has seen the message stays barred */
#define reset() tried = 0; hi = 0; lo = 0
#else
#define reset() forget()
#endif

#ifdef NO_BACKTRACK
#define MAY_GO_BACK false
#else
#define MAY_GO_BACK true
#endif

/* The current destination is dead, or cannot be reached: its children take its place. */
inline instead() {
    c_code {
        Pnode->d = lowest(Pnode->dests);
        Pnode->dests = (Pnode->dests & ~(1 << Pnode->d)) | children(Pnode->d);
    };
    reset()
}

#define NEXT_IS_DEAD c_expr { (now.dead & neighbours(Pnode->me)) >> lowest(Pnode->dests) & 1 }

proctype node(byte me; byte starts) {
    byte cast, to, d;
    bool skipped;
    short dests, seen, tried, kids;
    int hi, lo;
    chan in = channel[me];

end:
    do
    :: atomic {
        if
        :: in?MESSAGE
#ifdef KEEP
        :: memory[me]?MESSAGE
#endif
        :: starts ->
            c_code { Pnode->cast = lowest(Pnode->starts); };
            starts = without(starts, cast);
            dests = bit(0)
        fi;
        busy++;
        if
        :: dests == 0 -> dests = bit(me)
        :: dests != 0
        fi;
        /* From here to the next message that is ready to go; the computation of one node is one step. */
think:
        to = NONE;
        do
        :: has(dests, me) ->
            dests = without(dests, me);
            reset();
            if
#ifndef NO_CHECK
            :: has(got[cast], me)
            :: !has(got[cast], me) ->
#else
            :: true ->
#endif
                assert(!has(got[cast], me));
                got[cast] = got[cast] | bit(me);
                c_code { Pnode->kids = children(Pnode->me); }
            fi
        :: dests && !has(dests, me) && NEXT_IS_DEAD -> instead()
        :: dests && !has(dests, me) && !NEXT_IS_DEAD ->
#ifndef NO_LIST     /* 1: neither marks nor path; 2: a path, but no marks */
            seen = seen | bit(me);
#endif
            c_code {
                Pnode->d = lowest(Pnode->dests);
                Pnode->to = best(Pnode->me, Pnode->d, now.dead | Pnode->seen | Pnode->tried);
            };
            if
            :: to != NONE && downs < L ->
                downs++;
                tried = tried | bit(to);
                skipped = true
            :: to != NONE ->
#if NO_LIST != 1
                c_code [height(Pnode->hi, Pnode->lo) < NODES - 1] { push(&Pnode->hi, &Pnode->lo, Pnode->me); };
#endif
                break
            :: to == NONE && lo && MAY_GO_BACK ->
                c_code { Pnode->to = pop(&Pnode->hi, &Pnode->lo); };
                break
            :: to == NONE && !(lo && MAY_GO_BACK) && skipped -> forget()
            :: to == NONE && !(lo && MAY_GO_BACK) && !skipped -> instead()
            fi
        :: dests == 0 && kids ->
            c_code { Pnode->d = lowest(Pnode->kids); };
            kids = without(kids, d);
            forget();
            if
            :: has(dead, d) -> c_code { Pnode->dests = children(Pnode->d); }
            :: !has(dead, d) && downs < L ->
                downs++;
                c_code { Pnode->dests = 1 << Pnode->d | children(Pnode->d); }
            :: !has(dead, d) ->
                to = d;
                break
            fi
        :: dests == 0 && kids == 0 -> break
        od;
        /* What is not needed again is made equal, so that equal states are one. */
        d = 0;
        tried = 0;
        if
        :: to != NONE
        :: to == NONE ->
            forget();
            to = 0;
            cast = 0;
            busy--;
            goto end
        fi
    }
    /* Each message leaves in a step of its own: another's may reach the same channel between two of ours. */
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
    /* Never reached, and SPIN says so: a node has no end. */
}

init {
    byte i, c, n;
    short set;
    atomic {
        do
        :: c < CASTS ->
#ifdef ANY
            select(n : 0 .. N - 1);
#endif
            source[c] = n;
            set = set | bit(n);
            c++
        :: c == CASTS -> break
        od;
        n = 0;
        do
        :: i < N && n < D && !has(set, i) -> dead = dead | bit(i); n++; i++
        :: i < N -> i++
        :: i == N -> break
        od;
        /* The dead have processes too, which nothing ever reaches: a node's process has the same number in every run. */
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
        i = 0;
        c = 0;
        n = 0;
        set = 0
    }
    /* Nothing more can happen. A node with a message in hand is a deadlock, which SPIN reports itself. */
    timeout;
    if
    :: busy
    :: !busy ->
        do
        :: c < CASTS ->
            c_code { Pinit->set = connected(now.source[Pinit->c], now.dead); };
            assert(got[c] == set);
            c++
        :: c == CASTS -> break
        od
    fi
}
