"""tchu-tchu's set-up of a Celery app. Nothing here needs Django."""

from restante.compat.tchu_tchu.django.celery import Celery, setup_celery_queue

__all__ = ["Celery", "setup_celery_queue"]
