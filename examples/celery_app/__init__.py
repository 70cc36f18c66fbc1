"""A Celery application on Restante; `python -m examples.celery_app` runs it with a worker."""
