# The gateway and nothing else. Mount a folder with finch.toml, .env and the agent at /srv/agent, or derive an image
# of your own that installs what the agent needs and copies it there.

FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY finch_gateway finch_gateway
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim
COPY constraints.txt /tmp/constraints.txt
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    wheel=$(echo /wheels/finch_gateway-*.whl) \
    && pip install --no-cache-dir --constraint /tmp/constraints.txt "${wheel}[fast]" \
    && useradd --system --uid 10001 --create-home --home-dir /srv/agent finch
USER finch
WORKDIR /srv/agent

# In a container the port is published by its host; localhost would be out of everyone's reach.
ENV FINCH_GATEWAY_SERVER__HOST=0.0.0.0 \
    FINCH_GATEWAY_SERVER__PORT=8080 \
    PYTHONUNBUFFERED=1
EXPOSE 8080

# A signed health call would need a credential: this only asks whether the socket answers.
HEALTHCHECK --interval=10s --timeout=4s --start-period=20s CMD ["python", "-c", \
    "import os, socket; socket.create_connection(('127.0.0.1', int(os.environ['FINCH_GATEWAY_SERVER__PORT'])), 3).close()"]

ENTRYPOINT ["finch-gateway"]
CMD ["serve"]
