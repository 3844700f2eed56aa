// A kernel's linear_scan judged as it is computed again: per lane the certified fp64 scan,
// the companion scans of the budget, the second moment, and the comparison of metrics.py,
// of which only sums over the lane are kept. Nothing of the size of the tensors is made.
#include "ball.cuh"
#include "error_scan.cuh"
#include "layout.cuh"

// How a tensor is stored, and what is asked of it.
struct Judging {
    double store_u, store_eta;     // one rounding into the storage format
    double stores;                 // whether there is one
    double overflow_edge;          // largest value computed, less a rounding
    double largest, storage_u;     // of the storage format
    double probable, lambda;       // whether the second moment judges; lambda sqrt(v)
    double inflation;
};

// How operands enter, and how the last state leaves.
struct Entering {
    double flushed_below;                      // operands below may count as zero
    double decay_u, decay_eta, decay_largest;  // a cast of the decay
    double drive_u, drive_eta, drive_largest;  // a cast of what is written
};

// Sums over some elements.
struct Tally {
    double worst, squares, moments;
    long long worst_step, first_wrong;
    unsigned beyond, wrong_kind, nonfinite, excused, uncertified, overflowing, vacuous,
        lost, improbable;
};
constexpr int FIELDS = 14;

template <class Stored>
struct Lane {
    const Stored* start;
    long long stride;
};

template <class Stored>
struct Tensor {
    const Stored* start;
    long long stride[3];
    __device__ __forceinline__ Lane<Stored> lane(long long g, long long l) const {
        return {start + g * stride[0] + l * stride[2], stride[1]};
    }
};

// PLAIN: nothing is cast, and states are kept as computed.
template <bool PLAIN>
__device__ __forceinline__ ErrorNumber entered(double x, double flushed_below, double u,
                                               double eta, double largest) {
    ErrorNumber n;
    n.value = x;
    n.size = size_of(x);
    n.error = n.size < flushed_below ? n.size : Rounded(0.0);
    n.peak = n.size + n.error;
    if (!PLAIN && u > 0.0) {
        const Rounded top = n.size + n.error;
        n.error = n.error + (Rounded(u) * top + eta);
        n.peak = top <= largest ? n.peak : infinity();
    }
    return n;
}

// A value that was cast: its moment.
template <bool PLAIN>
__device__ __forceinline__ Moment cast(double x, double u, double eta) {
    if (PLAIN) return {x, 0.0};
    const Rounded own = Rounded(u) * x;
    return {x, own * own + Rounded(2.0 * eta) * eta};
}

__device__ __forceinline__ bool is_finite(Rounded x) {
    return size_of(x) < infinity();
}

// An element that needs a second look: as metrics.measure, in its order.
__device__ __forceinline__ void look_closely(Tally& tally, double got, Rounded hi,
                                             Rounded radius, Rounded e, Rounded error,
                                             Rounded edge, bool overflows,
                                             bool certified, bool lost, long long t) {
    const double inf = infinity().x;
    const Rounded size = size_of(hi), reach = radius + e;
    const bool above = hi + reach >= edge, below = hi - reach <= -edge;
    const bool may = above || below, must = size - reach > edge;
    const bool right = (got == inf && above) || (got == -inf && below);
    const bool finite = is_finite(got), bad = !finite && !right;
    bool excused = bad && overflows;
    bool wrong_kind = finite && must && !overflows && !right;
    wrong_kind |= (got == inf || got == -inf) && may && !right && !excused;
    bool nonfinite = bad && !excused && !wrong_kind;
    Rounded ratio = error == 0.0 ? Rounded(0.0) : error / e;
    if (bad || right || must || radius == inf) ratio = 0.0;
    if (ratio != ratio) ratio = inf;
    bool uncertified = !certified && !must;
    excused |= uncertified && overflows;
    uncertified = uncertified && !overflows;
    if (uncertified && !(ratio > 1.0)) ratio = 0.0;
    nonfinite = nonfinite && is_finite(radius);
    wrong_kind = wrong_kind && is_finite(radius);
    const bool wrong = ratio > 1.0 || nonfinite || wrong_kind;
    if (ratio > tally.worst) {
        tally.worst = ratio.x;
        tally.worst_step = t;
    }
    if (wrong && tally.first_wrong < 0) tally.first_wrong = t;
    tally.beyond += ratio > 1.0;
    tally.wrong_kind += wrong_kind;
    tally.nonfinite += nonfinite;
    tally.excused += excused;
    tally.uncertified += uncertified;
    tally.overflowing += may || right || excused;
    tally.vacuous += e >= size && !wrong;
    tally.lost += e >= size && lost;
}

// An element, its reference and its budget, of which underflow makes at most `lost`.
struct Element {
    Rounded got, hi, radius, e, peak, moment, lost;
};

// Whether a budget that is half underflow, or more, hides an error.
__device__ __forceinline__ bool is_lost(const Element& x, Rounded error) {
    return !(error <= 0.0) && !(Rounded(2.0) * x.lost < x.e);
}

// Budget and moment after the store into the tensor's format, inflated for fp64 sums.
__device__ __forceinline__ void stored(Element& x, Rounded value, const Judging& j) {
    if (j.stores != 0.0) {
        const Rounded own = Rounded(j.store_u) * x.hi;
        x.e = x.e + (Rounded(j.store_u) * (size_of(value) + x.e) + j.store_eta);
        x.lost = x.lost * (Rounded(1.0) + j.store_u) + j.store_eta;
        x.moment = x.moment + (own * own + Rounded(2.0) * j.store_eta * j.store_eta);
    }
    x.e = x.e * j.inflation;
    x.radius = x.radius * j.inflation;
}

// Tallies a right element, and says whether it is one: all of this fails where
// something is not finite.
__device__ __forceinline__ bool is_plain(Tally& tally, const Element& x, Rounded edge,
                                         const Judging& j, long long t) {
    const Rounded off = size_of(x.got - x.hi) - x.radius, size = size_of(x.hi);
    const Rounded error = off < 0.0 ? Rounded(0.0) : off;
    const bool plain = (error <= x.e) & (x.radius <= Rounded(0x1p-10) * x.e) &
                       (x.peak <= j.overflow_edge) & (size + (x.radius + x.e) < edge);
    const bool vacuous = x.e >= size;
    tally.vacuous += plain & vacuous;
    tally.lost += plain & vacuous & is_lost(x, error);
    // A quotient is formed only where it may be the largest.
    if (plain & (error > Rounded(tally.worst * (1.0 - 0x1p-50)) * x.e)) {
        const Rounded ratio = error / x.e;
        if (ratio > tally.worst) {
            tally.worst = ratio.x;
            tally.worst_step = t;
        }
    }
    return plain;
}

__device__ __forceinline__ void look_at(Tally& tally, const Element& x, Rounded edge,
                                        const Judging& j, long long t) {
    Rounded radius = x.radius, e = x.e;
    if (!is_finite(x.hi) || radius != radius) radius = infinity();
    if (e != e) e = infinity();
    const bool overflows = !(x.peak <= j.overflow_edge);
    Rounded error = size_of(x.got - x.hi) - radius;
    if (error < 0.0) error = 0.0;
    const bool certified = (is_finite(radius) && radius <= Rounded(0x1p-10) * e) ||
                           (radius <= 0x1p-1070 && e > 0.0);
    look_closely(tally, x.got.x, x.hi, radius, e, error, edge, overflows, certified,
                 is_lost(x, error), t);
}

// The error of an element within range, against its second moment.
__device__ __forceinline__ void weigh(Tally& tally, const Element& x, const Judging& j) {
    Rounded radius = x.radius;
    if (!is_finite(x.hi) || radius != radius) radius = infinity();
    Rounded error = size_of(x.got - x.hi) - radius;
    if (error < 0.0) error = 0.0;
    if (error != error) error = infinity();
    const Rounded squared = error * error;
    tally.squares += squared.x;
    tally.moments += x.moment.x;
    // The root is taken where the squares say that it may matter.
    if (squared >= Rounded(0.99 * j.lambda * j.lambda) * x.moment)
        tally.improbable += error > Rounded(j.lambda) * Rounded(sqrt(x.moment.x));
}

__device__ __forceinline__ void judge(Tally& tally, const Element& x, Rounded edge,
                                      const Judging& j, long long t) {
    const unsigned before = tally.overflowing;
    if (!is_plain(tally, x, edge, j, t)) look_at(tally, x, edge, j, t);
    if (j.probable != 0.0 && tally.overflowing == before) weigh(tally, x, j);
}

__device__ __forceinline__ void write(double* to, long long count, const Tally& tally) {
    const double fields[FIELDS] = {
        tally.worst,
        static_cast<double>(tally.worst_step),
        static_cast<double>(tally.first_wrong),
        tally.squares,
        tally.moments,
        static_cast<double>(tally.beyond),
        static_cast<double>(tally.wrong_kind),
        static_cast<double>(tally.nonfinite),
        static_cast<double>(tally.excused),
        static_cast<double>(tally.uncertified),
        static_cast<double>(tally.overflowing),
        static_cast<double>(tally.vacuous),
        static_cast<double>(tally.lost),
        static_cast<double>(tally.improbable),
    };
#pragma unroll
    for (int i = 0; i < FIELDS; ++i) to[i * count] = fields[i];
}

__device__ __forceinline__ Rounded edge_of(const Judging& j) {
    return Rounded(j.largest) * (Rounded(1.0) + j.storage_u / 2);
}

// `tallies` [2, FIELDS, lanes]: of the states after each step, and of the last state.
template <class Stored, bool TREES, bool COMPENSATED, bool PLAIN, int AHEAD>
__global__ void __launch_bounds__(128)
    judge_lanes(Tensor<Stored> a, Tensor<Stored> b, Tensor<Stored> got,
                const double* start, const double* end, const Path* path, Coefficients c,
                MomentCoefficients m, long long every, Entering entering, Judging states,
                Judging last, double* tallies, Shape shape) {
    const long long index = thread_index(), count = shape.groups * shape.lanes;
    if (index >= count) return;
    long long g, l;
    split(index, shape.lanes, g, l);
    const Lane<Stored> from_a = a.lane(g, l), from_b = b.lane(g, l);
    const Lane<Stored> from_got = got.lane(g, l);
    const double first = start ? start[index] : 0.0;
    const Divisor one_less(Rounded(1.0) - c.u);
    const Rounded edge = edge_of(states);
    State s = {first, 0.0, 0.0, 0.0, 0.0};
    ErrorState bound;
    const ErrorNumber begun =
        entered<false>(first, entering.flushed_below, 0.0, 0.0, 0.0);
    bound.value = first;
    bound.size = begun.size;
    bound.error = begun.error;
    bound.peak = begun.peak;
    bound.stored = bound.floor = bound.rest = bound.span = 0.0;
    bound.top = bound.reach = begun.size + begun.error;
    Moment likely = {first, 0.0};
    Tally tally = {0.0, 0.0, 0.0, 0, -1};
    Path here = path[0];
    long long until = every;  // steps to the next store of the state
    bool boundary = true;     // whether it is stored before this step

    // What underflow makes of a budget at most; where every order is allowed the scan of
    // the bounds has it, else it is carried along here.
    bool flushed = false;
    const Rounded growth = Rounded(1.0) + Rounded(8.0) * c.u;
    auto underflow = [&](double w, double x, const Path& at) {
        const double below = entering.flushed_below;
        flushed |= (fabs(w) < below && w != 0.0) || (fabs(x) < below && x != 0.0);
        Rounded lost = Rounded(at.grown) *
                       (Rounded(2.0) * larger(at.adds, 1.0) * bound.floor +
                        Rounded(at.steps) * c.eta * bound.reach);
        if (!TREES) {
            const Rounded sum = size_of(w) * bound.floor + c.eta + c.add_eta;
            lost = bound.floor = (sum + c.state_eta) * growth;
        }
        return flushed ? infinity() : lost;
    };

    auto step = [&](double w, double x, double value, long long t) {
        const ErrorNumber decay =
            entered<PLAIN>(w, entering.flushed_below, entering.decay_u,
                           entering.decay_eta, entering.decay_largest);
        const ErrorNumber drive =
            entered<PLAIN>(x, entering.flushed_below, entering.drive_u,
                           entering.drive_eta, entering.drive_largest);
        advance<false>(s, Ball{w, 0.0}, Ball{x, 0.0});
        advance<TREES, COMPENSATED, !PLAIN>(bound, decay, drive, c, one_less, boundary,
                                            here);
        if (!COMPENSATED && states.probable != 0.0)
            advance(likely, cast<PLAIN>(w, entering.decay_u, entering.decay_eta),
                    cast<PLAIN>(x, entering.drive_u, entering.drive_eta), m, !PLAIN && boundary);
        here = path[t + 1];
        Element element;
        element.e = settle<TREES, COMPENSATED>(bound, c, here);
        if (!PLAIN) {
            const Rounded again =
                Rounded(c.state_u) * (size_of(bound.value) + element.e) + c.state_eta;
            boundary = --until == 0;
            if (boundary) until = every;
            element.e = boundary ? element.e + again : element.e;
        }
        element.lost = underflow(w, x, here);
        element.got = value;
        element.hi = s.value;
        element.radius = s.radius;
        element.peak = bound.peak;
        element.moment = likely.moment;
        stored(element, bound.value, states);
        return element;
    };

    const long long whole = shape.steps - shape.steps % AHEAD;
    Stored next_a[AHEAD], next_b[AHEAD], next_got[AHEAD];
    auto load = [&](long long from) {
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            next_a[i] = from_a.start[(from + i) * from_a.stride];
            next_b[i] = from_b.start[(from + i) * from_b.stride];
            next_got[i] = from_got.start[(from + i) * from_got.stride];
        }
    };
    if (whole > 0) load(0);
    for (long long from = 0; from < whole; from += AHEAD) {
        Stored now_a[AHEAD], now_b[AHEAD], now_got[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            now_a[i] = next_a[i];
            now_b[i] = next_b[i];
            now_got[i] = next_got[i];
        }
        // The last batch is loaded once more in place of one beyond the end.
        load(from + AHEAD < whole ? from + AHEAD : from);
        Element elements[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i)
            elements[i] = step(now_a[i], now_b[i], now_got[i], from + i);
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) judge(tally, elements[i], edge, states, from + i);
    }
    for (long long t = whole; t < shape.steps; ++t) {
        const Element element =
            step(from_a.start[t * from_a.stride], from_b.start[t * from_b.stride],
                 from_got.start[t * from_got.stride], t);
        judge(tally, element, edge, states, t);
    }
    write(tallies + index, count, tally);

    Element element;
    element.e = settle<TREES, COMPENSATED>(bound, c, here);
    const Rounded top = size_of(bound.value) + element.e;
    const Rounded own = Rounded(c.state_u) * s.value;
    element.e = element.e + (Rounded(c.state_u) * top + c.state_eta);
    element.peak = top <= c.state_largest ? bound.peak : infinity();
    element.lost = infinity();
    element.moment =
        likely.moment + (own * own + Rounded(2.0) * c.state_eta * c.state_eta);
    element.got = end[index];
    element.hi = s.value;
    element.radius = s.radius;
    stored(element, bound.value, last);
    tally = {0.0, 0.0, 0.0, 0, -1};
    judge(tally, element, edge_of(last), last, 0);
    write(tallies + FIELDS * count + index, count, tally);
}

// Tallies [FIELDS, lanes] of every so many lanes added up: [FIELDS + 2, threads], the
// last two rows the lanes of the largest ratio and of the earliest wrong element.
__global__ void __launch_bounds__(128)
    add_tallies(const double* tallies, double* sums, long long lanes, long long threads) {
    const long long index = thread_index();
    if (index >= threads) return;
    double sum[FIELDS] = {0.0, 0.0, -1.0}, worst_lane = 0.0, wrong_lane = 0.0;
    for (long long lane = index; lane < lanes; lane += threads) {
        const double worst = tallies[lane], first = tallies[2 * lanes + lane];
        if (worst > sum[0]) {
            sum[0] = worst;
            sum[1] = tallies[lanes + lane];
            worst_lane = static_cast<double>(lane);
        }
        if (first >= 0.0 && (sum[2] < 0.0 || first < sum[2])) {
            sum[2] = first;
            wrong_lane = static_cast<double>(lane);
        }
#pragma unroll
        for (int i = 3; i < FIELDS; ++i) sum[i] += tallies[i * lanes + lane];
    }
#pragma unroll
    for (int i = 0; i < FIELDS; ++i) sums[i * threads + index] = sum[i];
    sums[FIELDS * threads + index] = worst_lane;
    sums[(FIELDS + 1) * threads + index] = wrong_lane;
}
