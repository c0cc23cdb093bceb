// gate::silu_mul(x, y) = x * sigmoid(x) * y in one pass over the memory, on the CPU.
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <cmath>

namespace {

at::Tensor silu_mul(const at::Tensor& x, const at::Tensor& y) {
  TORCH_CHECK(x.sizes() == y.sizes(), "silu_mul: x is ", x.sizes(), " and y is ", y.sizes());
  TORCH_CHECK(x.scalar_type() == y.scalar_type(), "silu_mul: x is ", x.scalar_type(), " and y is ", y.scalar_type());
  TORCH_CHECK(x.device() == y.device(), "silu_mul: x is on ", x.device(), " and y is on ", y.device());
  // Whatever the strides of the arguments: the loop below reads memory in order.
  const at::Tensor left = x.contiguous(), right = y.contiguous();
  at::Tensor out = at::empty_like(left, at::MemoryFormat::Contiguous);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "silu_mul", [&] {
    using wide = at::opmath_type<scalar_t>;
    const scalar_t* a = left.const_data_ptr<scalar_t>();
    const scalar_t* b = right.const_data_ptr<scalar_t>();
    scalar_t* c = out.mutable_data_ptr<scalar_t>();
    at::parallel_for(0, left.numel(), 32768, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const wide value = static_cast<wide>(a[i]);
        c[i] = static_cast<scalar_t>(value / (1 + std::exp(-value)) * static_cast<wide>(b[i]));
      }
    });
  });
  return out;
}

}  // namespace

TORCH_LIBRARY(gate, library) {
  library.def("silu_mul(Tensor x, Tensor y) -> Tensor");
}

TORCH_LIBRARY_IMPL(gate, CPU, library) {
  library.impl("silu_mul", silu_mul);
}
