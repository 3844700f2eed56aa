// Elementwise operations on fp64 balls [A, B, C, D] with repeated axes.
#include "ball.cuh"
#include "layout.cuh"

struct Add {
    __device__ static Ball of(Ball x, Ball y) { return x + y; }
};
struct Multiply {
    __device__ static Ball of(Ball x, Ball y) { return x * y; }
};
struct OneMinus {
    __device__ static Ball of(Ball x, Ball) { return one_minus(x); }
};
struct Exp {
    __device__ static Ball of(Ball x, Ball) { return exp_of(x); }
};
struct Softplus {
    __device__ static Ball of(Ball x, Ball) { return softplus(x); }
};
struct Sigmoid {
    __device__ static Ball of(Ball x, Ball) { return sigmoid(x); }
};
struct Reciprocal {
    __device__ static Ball of(Ball x, Ball) { return reciprocal(x); }
};

template <class Operation>
__global__ void __launch_bounds__(256)
    elementwise(Operand<2> x, Operand<2> y, Room<2> z, Shape shape) {
    const long long i = thread_index();
    if (i >= shape.groups * shape.steps * shape.keys * shape.lanes) return;
    long long rows, planes, a, b, c, d;
    split(i, shape.lanes, rows, d);
    split(rows, shape.keys, planes, c);
    split(planes, shape.steps, a, b);
    const Ball result = Operation::of({x.at(0, a, b, c, d), x.at(1, a, b, c, d)},
                                      {y.at(0, a, b, c, d), y.at(1, a, b, c, d)});
    z.at(0, a, b, c, d) = result.value.x;
    z.at(1, a, b, c, d) = result.radius.x;
}
