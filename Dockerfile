# opreplay in a container, for the CPU or for CUDA.
#
#   docker build -t opreplay .
#   docker build -t opreplay:cuda --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu126 .
#   docker run --rm -v "$PWD:/work" opreplay inspect trace.json.gz
#   docker run --rm --gpus all -v "$PWD:/work" opreplay:cuda run trace.json.gz --device cuda
#
# torch's CUDA wheels bring CUDA's libraries along: the host needs the driver and NVIDIA's container toolkit, no more.

ARG PYTHON=3.12

FROM python:${PYTHON}-slim AS build
# A compiler for the fast half of the trace reader; it stays out of the image.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY pyproject.toml README.md LICENSE ./
COPY traces traces
COPY initializers initializers
COPY replay replay
COPY cli cli
RUN python -m pip wheel --no-deps --wheel-dir /wheels .

FROM python:${PYTHON}-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY constraints.txt requirements.lock /tmp/
COPY --from=build /wheels /wheels
# One index for each install: with two, either may answer for any name. torch and CUDA's libraries come from PyTorch's, all else
# from PyPI by the digests of the lock file, and opreplay from the wheel alone.
RUN python -m pip install --no-cache-dir --index-url "${TORCH_INDEX}" "$(grep ^torch== /tmp/constraints.txt)" \
    && python -m pip install --no-cache-dir --no-deps --require-hashes -r /tmp/requirements.lock \
    && python -m pip install --no-cache-dir --no-deps --no-index /wheels/*.whl \
    && python -m pip check \
    && rm -rf /wheels /tmp/constraints.txt /tmp/requirements.lock
RUN useradd --create-home opreplay
USER opreplay
WORKDIR /work
ENTRYPOINT ["opreplay"]
CMD ["--help"]
