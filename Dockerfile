# The image of the daemon. Replace the tag by a digest in your registry's build: FROM ...@sha256:<digest>.
ARG PYTHON=python:3.13-slim-bookworm

FROM ${PYTHON} AS build
WORKDIR /source
COPY requirements-dev.lock requirements.lock ./
RUN python -m venv /opt/holdfast \
    && /opt/holdfast/bin/pip install --no-cache-dir --require-hashes -r requirements.lock
# The whole development environment stays in this stage; it holds the locked hatchling.
RUN python -m venv /build \
    && /build/bin/pip install --no-cache-dir --require-hashes -r requirements-dev.lock
COPY pyproject.toml README.md CHANGELOG.md LICENSE ./
COPY daemon daemon
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/holdfast/bin/pip install --no-cache-dir --no-deps /wheels/*.whl \
    && /opt/holdfast/bin/pip uninstall --yes pip

FROM ${PYTHON}
LABEL org.opencontainers.image.title="holdfast" \
      org.opencontainers.image.description="Kubernetes device plugin: one holder at a time, and free means free" \
      org.opencontainers.image.licenses="Apache-2.0"
# pyudev loads libudev; tini ends with the signals and exit codes of the daemon it starts.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libudev1 tini \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/holdfast /opt/holdfast
ENV PATH=/opt/holdfast/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# Probes are Kubernetes' business, so there is no HEALTHCHECK.
ENTRYPOINT ["tini", "--", "holdfast"]
CMD ["run"]
