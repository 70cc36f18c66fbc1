"""The routes of the API, one module per subject; `restante.server.app` puts them together."""
