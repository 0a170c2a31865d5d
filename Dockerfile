# pageport on CPU. Build: docker build -t pageport .   Run: docker run -p 8000:8000 pageport
# The wheel brings compiled kernels; the compiler stays behind.
FROM python:3.12-slim AS wheel
RUN apt-get update && apt-get install --yes --no-install-recommends g++
WORKDIR /source
COPY pyproject.toml README.md LICENSE hatch_build.py ./
COPY core ./core
COPY backends ./backends
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
WORKDIR /app
# TORCH_OPTIONS="--index-url …" with PyTorch's CPU wheel index keeps the image small.
ARG TORCH="torch>=2.6"
ARG TORCH_OPTIONS=""
RUN pip install --no-cache-dir $TORCH_OPTIONS "$TORCH"
COPY --from=wheel /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/*.whl)[cpu,server]" && pageport models get smollm2
RUN useradd --create-home pageport && mv /root/.cache /home/pageport/.cache && chown -R pageport /home/pageport
USER pageport
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD python -c "import urllib.request as u; u.urlopen('http://127.0.0.1:8000/health')"
ENTRYPOINT ["pageport", "serve", "--host", "0.0.0.0"]
