"""Celery and Kombu on the core, with real workers in processes of their own."""
