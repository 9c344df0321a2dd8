# Weir in a container. `build` installs from the lock and builds the wheels, the last stage keeps the result alone: that
# is the gateway. `docker build --target pipeline` makes another image of the same, with Spark, for the jobs.

FROM python:3.11-slim AS build
# Compiles engine/_rows.c, and stays here. Its version goes with the base image's Debian.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY requirements-build.lock requirements-tools.lock requirements.lock ./
RUN python -m pip install --no-cache-dir --require-hashes -r requirements-build.lock \
 && python -m venv --without-pip /opt/weir \
 && python -m pip --python /opt/weir install --no-cache-dir --require-hashes -r requirements.lock
# What lists the packages of an image (SBOM): it has dependencies of its own, and stays here.
RUN python -m venv --without-pip /opt/sbom \
 && python -m pip --python /opt/sbom install --no-cache-dir --require-hashes -c requirements-tools.lock \
    "$(grep --only-matching '^cyclonedx-bom==[^ ]*' requirements-tools.lock)"
COPY pyproject.toml LICENSE README.md ./
COPY .ci/build_rows.py .ci/
COPY app app
COPY engine engine
COPY history history
COPY sdk/python sdk/python
RUN python -m pip wheel --no-deps --no-build-isolation --no-index --wheel-dir /wheels . ./sdk/python \
 && python -m pip --python /opt/weir install --no-deps --no-index /wheels/*.whl \
 && /opt/sbom/bin/cyclonedx-py environment --output-reproducible -o /opt/weir/sbom.cdx.json /opt/weir/bin/python


# Spark and a Java: 1.2 GB, and nothing of it in the image of the gateway.
FROM build AS pipeline-build
COPY requirements-spark.lock ./
COPY spark spark
# PySpark is a source distribution; what builds it comes from the lock too, and goes again.
RUN python -m pip --python /opt/weir install --no-cache-dir --require-hashes -r requirements-build.lock \
 && python -m pip --python /opt/weir install --no-cache-dir --require-hashes --no-build-isolation \
    -r requirements-spark.lock \
 && python -m pip wheel --no-deps --no-build-isolation --no-index --wheel-dir /wheels/spark ./spark \
 && python -m pip --python /opt/weir install --no-deps --no-index /wheels/spark/*.whl \
 && python -m pip --python /opt/weir uninstall --yes hatchling setuptools \
 && XDG_CACHE_HOME=/opt/weir/cache /opt/weir/bin/python -c "from pyspark_weir.java import find; find()" \
 && /opt/sbom/bin/cyclonedx-py environment --output-reproducible -o /opt/weir/sbom.cdx.json /opt/weir/bin/python


FROM python:3.11-slim AS pipeline
LABEL org.opencontainers.image.title="weir-pipeline" org.opencontainers.image.licenses="MIT" \
      weir.sbom="/opt/weir/sbom.cdx.json"
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin weir \
 && install --directory --owner weir --mode 0750 /archive
COPY --from=pipeline-build /opt/weir /opt/weir
# The way to Java was made above: the file system is read-only here.
ENV XDG_CACHE_HOME=/opt/weir/cache
USER 10001
VOLUME /archive
STOPSIGNAL SIGTERM
# A job that ends is done, or says why it is not: there is nothing to ask it meanwhile.
HEALTHCHECK NONE
ENTRYPOINT ["/opt/weir/bin/weir-spark"]
CMD ["--help"]


FROM python:3.11-slim
LABEL org.opencontainers.image.title="weir" org.opencontainers.image.licenses="MIT" \
      weir.sbom="/opt/weir/sbom.cdx.json"
RUN useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin weir \
 && install --directory --owner weir --mode 0750 /data
COPY --from=build /opt/weir /opt/weir
USER 10001
VOLUME /data
EXPOSE 8080
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s --retries=3 CMD ["/opt/weir/bin/python", "-c", \
  "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8080/healthz/live', timeout=2)"]

# Only 0.0.0.0 can be published from a container, and the gateway refuses to listen there without a token: give it
# WEIR_ROOT_TOKEN_FILE, a file of a secret that is mounted, or WEIR_ROOT_TOKEN. It runs with a read-only root; /data is
# its only folder.
ENTRYPOINT ["/opt/weir/bin/weir"]
CMD ["serve", "--host", "0.0.0.0", "--data", "/data"]
