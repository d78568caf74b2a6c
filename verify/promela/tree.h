/* The k-ary sibling tree, ST-1: everything here follows from NODES and ARITY alone, so that none of it is state.
   A set of nodes is a mask, node i its bit i. */

static int parent(int i) { return (i - 1) / ARITY; }

static int level(int i)
{
    int l = 0;
    for (; i; i = parent(i)) l++;
    return l;
}

/* The first node of a level, and how many it has: the last level may be short, and its ring is then a short one. */
static int first_of(int l)
{
    int f = 0;
    while (l--) f = f * ARITY + 1;
    return f;
}

static int width(int l)
{
    int end = first_of(l + 1);
    return (end < NODES ? end : NODES) - first_of(l);
}

static int children(int i)
{
    int set = 0, c;
    for (c = i * ARITY + 1; c <= i * ARITY + ARITY && c < NODES; c++) set |= 1 << c;
    return set;
}

/* Parent, children, left and right: at most ARITY + 3. Alone on its level, a node has no ring. */
static int neighbours(int i)
{
    int l = level(i), f = first_of(l), w = width(l), set = children(i);
    if (i) set |= 1 << parent(i);
    set |= 1 << (f + (i - f + 1) % w) | 1 << (f + (i - f + w - 1) % w);
    return set & ~(1 << i);
}

static int lowest(int set) { return set ? __builtin_ctz(set) : NODES; }

/* The variant rule, 001 §3.2: climb to some level, go round its ring, descend; the cheapest of all levels. */
static int cost_of(int a, int b)
{
    int least = 4 * NODES, steps = 0, ring, w;
    while (level(a) > level(b)) { a = parent(a); steps++; }
    while (level(b) > level(a)) { b = parent(b); steps++; }
    for (;; a = parent(a), b = parent(b), steps += 2) {
        w = width(level(a));
        ring = a > b ? a - b : b - a;
        if (w - ring < ring) ring = w - ring;
        if (steps + ring < least) least = steps + ring;
        if (a == b) return least;
    }
}

/* The neighbour of `me` outside `barred` that is cheapest from there to `dest`, the lowest of equals; NODES if none is left. */
static int best(int me, int dest, int barred)
{
    static signed char cost[NODES][NODES]; /* footnote 4: a table, filled once */
    int at, next = NODES, set;
    if (!cost[0][1])
        for (at = 0; at < NODES * NODES; at++) cost[at / NODES][at % NODES] = cost_of(at / NODES, at % NODES);
    for (set = neighbours(me) & ~barred; set; set &= set - 1) {
        at = lowest(set);
        if (next == NODES || cost[at][dest] < cost[next][dest]) next = at;
    }
    return next;
}

/* All that live and hang together with `from` by links of neighbours. */
static int connected(int from, int dead)
{
    int set = 1 << from, old = 0, i;
    while (set != old)
        for (old = set, i = 0; i < NODES; i++)
            if (set >> i & 1) set |= neighbours(i) & ~dead;
    return set;
}

/* The path of a multicast: a stack of nodes, four bits each, its top in the lowest. Small states are what memory is saved by. */
static void push(int *hi, int *lo, int i)
{
    *hi = (unsigned)*hi << 4 | (unsigned)*lo >> 28;
    *lo = (unsigned)*lo << 4 | (i + 1);
}

static int pop(int *hi, int *lo)
{
    int i = (*lo & 15) - 1;
    *lo = (unsigned)*lo >> 4 | (unsigned)*hi << 28;
    *hi = (unsigned)*hi >> 4;
    return i;
}

static int height(int hi, int lo)
{
    int n = 0;
    while (hi | lo) { pop(&hi, &lo); n++; }
    return n;
}
