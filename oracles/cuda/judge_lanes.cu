// A kernel's linear_scan judged as it is computed again: per lane the certified fp64 scan,
// the companion scans of the budget, the second moment, and the comparison of metrics.py,
// of which only sums over the lane are kept. Nothing of the size of the tensors is made.
#include "ball.cuh"
#include "error_scan.cuh"
#include "layout.cuh"

// How a tensor is stored and what is asked of it.
struct Judging {
    double store_u, store_eta;                 // one rounding into the storage format
    double stores;                             // whether there is one
    double overflow_edge;                      // largest value computed, less a rounding
    double largest, storage_u;                 // of the storage format
    double flushed_below;                      // operands below may count as zero
    double decay_u, decay_eta, decay_largest;  // a cast of the decay
    double drive_u, drive_eta, drive_largest;  // a cast of what is written
    double probable;                           // whether the second moment judges
    double lambda;                             // elements beyond it times sqrt(v) count
    double inflation;
};

// Sums over one lane.
struct Tally {
    double worst, squares, moments;
    long long worst_step, first_wrong;
    unsigned beyond, wrong_kind, nonfinite, excused, uncertified, overflowing, vacuous,
        lost, improbable;
};
constexpr int FIELDS = 14;

// Final values of one lane: S, its radius, M, error bound, peak and second moment.
constexpr int FINALS = 6;

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

__device__ __forceinline__ ErrorNumber entered(double x, const Judging& j, double u,
                                               double eta, double largest) {
    ErrorNumber n;
    n.value = x;
    n.size = size_of(x);
    n.error = n.size < j.flushed_below ? n.size : Rounded(0.0);
    n.peak = n.size + n.error;
    if (u > 0.0) {
        const Rounded top = n.size + n.error;
        n.error = n.error + (Rounded(u) * top + eta);
        n.peak = top <= largest ? n.peak : infinity();
    }
    return n;
}

// A value that was cast: its moment.
__device__ __forceinline__ Moment cast(double x, double u, double eta) {
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
                                             bool certified, long long t) {
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
    tally.lost += e >= size && (error > 0.0 || error != error);
}

// One element against its reference and budget.
__device__ __forceinline__ void compare(Tally& tally, double got, Rounded hi,
                                        Rounded radius, ErrorNumber budget,
                                        Rounded moment, const Judging& j, long long t) {
    radius = radius * j.inflation;
    if (!is_finite(hi) || radius != radius) radius = infinity();
    Rounded e = budget.error;
    if (j.stores != 0.0)
        e = e + (Rounded(j.store_u) * (size_of(budget.value) + e) + j.store_eta);
    e = e * j.inflation;
    if (e != e) e = infinity();
    const bool overflows = !(budget.peak <= j.overflow_edge);
    Rounded error = size_of(Rounded(got) - hi) - radius;
    if (error < 0.0) error = 0.0;
    const Rounded edge = Rounded(j.largest) * (Rounded(1.0) + j.storage_u / 2);
    const bool certified = (is_finite(radius) && radius <= Rounded(0x1p-10) * e) ||
                           (radius <= 0x1p-1070 && e > 0.0);
    // All of these fail where something is not finite.
    const bool plain = error <= e && certified && !overflows &&
                       size_of(hi) + (radius + e) < edge;
    if (plain) {
        // A quotient is formed only where it may be the largest.
        if (error > Rounded(tally.worst * (1.0 - 0x1p-50)) * e) {
            const Rounded ratio = error / e;
            if (ratio > tally.worst) {
                tally.worst = ratio.x;
                tally.worst_step = t;
            }
        }
        tally.vacuous += e >= size_of(hi);
        tally.lost += e >= size_of(hi) && error > 0.0;
    } else {
        const unsigned before = tally.overflowing;
        look_closely(tally, got, hi, radius, e, error, edge, overflows, certified, t);
        if (tally.overflowing != before) return;
    }
    if (j.probable == 0.0) return;
    if (j.stores != 0.0) {
        const Rounded own = Rounded(j.store_u) * hi;
        moment = moment + (own * own + Rounded(2.0) * j.store_eta * j.store_eta);
    }
    if (error != error) error = infinity();
    const Rounded squared = error * error;
    tally.squares += squared.x;
    tally.moments += moment.x;
    // The root is taken where the squares say that it may matter.
    const Rounded limit = Rounded(j.lambda) * j.lambda * moment;
    if (squared >= Rounded(0.99) * limit)
        tally.improbable += error > Rounded(j.lambda) * Rounded(sqrt(moment.x));
}

template <class Stored, bool TREES, bool COMPENSATED, int AHEAD>
__global__ void __launch_bounds__(128)
    judge_lanes(Tensor<Stored> a, Tensor<Stored> b, Tensor<Stored> got,
                const double* start, const Path* path, Coefficients c,
                MomentCoefficients m, long long every, Judging j, double* tallies,
                double* finals, Shape shape) {
    const long long index = thread_index(), count = shape.groups * shape.lanes;
    if (index >= count) return;
    long long g, l;
    split(index, shape.lanes, g, l);
    const Lane<Stored> from_a = a.lane(g, l), from_b = b.lane(g, l);
    const Lane<Stored> from_got = got.lane(g, l);
    const double first = start ? start[index] : 0.0;
    State s = {first, 0.0, 0.0, 0.0, 0.0};
    ErrorState bound;
    const ErrorNumber begun = entered(first, j, 0.0, 0.0, 0.0);
    bound.value = first;
    bound.size = begun.size;
    bound.error = begun.error;
    bound.peak = begun.peak;
    bound.stored = bound.floor = bound.rest = bound.span = 0.0;
    bound.top = bound.reach = begun.size + begun.error;
    Moment likely = {first, 0.0};
    Tally tally = {0.0, 0.0, 0.0, 0, -1};
    Stored next_a[AHEAD], next_b[AHEAD], next_got[AHEAD];
    auto load = [&](long long from) {
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            const long long t = from + i < shape.steps ? from + i : shape.steps - 1;
            next_a[i] = from_a.start[t * from_a.stride];
            next_b[i] = from_b.start[t * from_b.stride];
            next_got[i] = from_got.start[t * from_got.stride];
        }
    };
    load(0);
    Path here = path[0];
    long long until = every;  // steps to the next store of the state
    bool boundary = true;     // whether it is stored before this step
    for (long long from = 0; from < shape.steps; from += AHEAD) {
        Stored now_a[AHEAD], now_b[AHEAD], now_got[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            now_a[i] = next_a[i];
            now_b[i] = next_b[i];
            now_got[i] = next_got[i];
        }
        load(from + AHEAD);
#pragma unroll
        for (int i = 0; i < AHEAD; ++i) {
            const long long t = from + i;
            if (t < shape.steps) {
                const double w = now_a[i], x = now_b[i];
                advance<false>(s, Ball{w, 0.0}, Ball{x, 0.0});
                const ErrorNumber decay =
                    entered(w, j, j.decay_u, j.decay_eta, j.decay_largest);
                const ErrorNumber drive =
                    entered(x, j, j.drive_u, j.drive_eta, j.drive_largest);
                advance<TREES, COMPENSATED>(bound, decay, drive, c, boundary, here);
                if (!COMPENSATED)
                    advance(likely, cast(w, j.decay_u, j.decay_eta),
                            cast(x, j.drive_u, j.drive_eta), m, boundary);
                here = path[t + 1];
                ErrorNumber budget;
                budget.error = settle<TREES, COMPENSATED>(bound, c, here);
                boundary = --until == 0;
                if (boundary) {
                    until = every;
                    budget.error =
                        budget.error +
                        (Rounded(c.state_u) * (size_of(bound.value) + budget.error) +
                         c.state_eta);
                }
                budget.value = bound.value;
                budget.peak = bound.peak;
                compare(tally, now_got[i], s.value, s.radius, budget, likely.moment, j, t);
            }
        }
    }
    const double fields[FIELDS] = {
        tally.worst,
        static_cast<double>(tally.worst_step),
        static_cast<double>(tally.first_wrong),
        static_cast<double>(tally.beyond),
        static_cast<double>(tally.wrong_kind),
        static_cast<double>(tally.nonfinite),
        static_cast<double>(tally.excused),
        static_cast<double>(tally.uncertified),
        static_cast<double>(tally.overflowing),
        static_cast<double>(tally.vacuous),
        static_cast<double>(tally.lost),
        static_cast<double>(tally.improbable),
        tally.squares,
        tally.moments,
    };
#pragma unroll
    for (int i = 0; i < FIELDS; ++i) tallies[i * count + index] = fields[i];
    const Rounded error = settle<TREES, COMPENSATED>(bound, c, here);
    const Rounded ends[FINALS] = {s.value, s.radius, TREES ? bound.size : size_of(s.value),
                                  error, bound.peak, likely.moment};
#pragma unroll
    for (int i = 0; i < FINALS; ++i) finals[i * count + index] = ends[i].x;
}
