// Elementwise operations on double-doubles [A, B, C, D] with repeated axes.
#include "double_word.cuh"
#include "layout.cuh"

struct Add {
    __device__ static Triple of(Triple x, Triple y, Tables) { return x + y; }
};
struct Multiply {
    __device__ static Triple of(Triple x, Triple y, Tables) { return x * y; }
};
struct Exp {
    __device__ static Triple of(Triple x, Triple, Tables t) { return exp_of(x, t); }
};
struct Softplus {
    __device__ static Triple of(Triple x, Triple, Tables t) { return softplus(x, t); }
};
struct Sigmoid {
    __device__ static Triple of(Triple x, Triple, Tables t) { return sigmoid(x, t); }
};
struct Reciprocal {
    __device__ static Triple of(Triple x, Triple, Tables) { return inverse(x); }
};

template <class Operation>
__global__ void __launch_bounds__(256)
    elementwise(Operand<3> x, Operand<3> y, Room<3> z, Shape shape, Tables tables) {
    const long long i = thread_index();
    if (i >= shape.groups * shape.steps * shape.keys * shape.lanes) return;
    long long rows, planes, a, b, c, d;
    split(i, shape.lanes, rows, d);
    split(rows, shape.keys, planes, c);
    split(planes, shape.steps, a, b);
    const Triple result = Operation::of(
        {x.at(0, a, b, c, d), x.at(1, a, b, c, d), x.at(2, a, b, c, d)},
        {y.at(0, a, b, c, d), y.at(1, a, b, c, d), y.at(2, a, b, c, d)}, tables);
    z.at(0, a, b, c, d) = result.hi.x;
    z.at(1, a, b, c, d) = result.lo.x;
    z.at(2, a, b, c, d) = result.radius.x;
}
