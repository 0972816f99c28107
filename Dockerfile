# undelta on the CPU, built from this checkout:
#     docker build -t undelta .
#     docker run --rm -v "$PWD:/work" undelta audit audit.toml --out audit
FROM python:3.12-slim

# PyTorch's CPU build: the usual one brings gigabytes of CUDA.
RUN pip install --no-cache-dir "torch>=2.6,<2.14" --index-url https://download.pytorch.org/whl/cpu

COPY pyproject.toml hatch_build.py README.md LICENSE /undelta/
COPY src /undelta/src
RUN pip install --no-cache-dir "/undelta[digits,tune]" && rm -rf /undelta

# Results belong to whoever owns the mounted folder: docker run --user "$(id -u):$(id -g)" ...
RUN useradd --create-home auditor
USER auditor
WORKDIR /work
ENTRYPOINT ["undelta"]
CMD ["--help"]
