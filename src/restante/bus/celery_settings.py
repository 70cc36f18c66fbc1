"""Celery's own keywords of a bus, for type checkers: arguments of a Celery app, and settings but for those of result
backends. At run time every setting of the Celery that is installed is taken.
"""

from __future__ import annotations

from typing import Any, TypedDict

CeleryOptions = TypedDict("CeleryOptions", {  # noqa: UP013 - a class would take a line for each
    "loader": Any, "backend": Any, "amqp": Any, "events": Any, "log": Any, "control": Any, "set_as_current": bool,
    "tasks": Any, "changes": Any, "config_source": Any, "fixups": Any, "task_cls": Any, "autofinalize": bool,
    "namespace": Any, "strict_typing": bool, "accept_content": Any, "beat_cron_starting_deadline": Any,
    "beat_enable_remote_control": Any, "beat_max_loop_interval": Any, "beat_remote_control_max_tick_age": Any,
    "beat_schedule": Any, "beat_schedule_filename": Any, "beat_scheduler": Any, "beat_sync_every": Any,
    "broker_channel_error_retry": Any, "broker_connection_max_retries": Any, "broker_connection_retry": Any,
    "broker_connection_retry_on_startup": Any, "broker_connection_timeout": Any, "broker_failover_strategy": Any,
    "broker_heartbeat": Any, "broker_heartbeat_checkrate": Any, "broker_host": Any, "broker_login_method": Any,
    "broker_native_delayed_delivery_queue_type": Any, "broker_password": Any, "broker_pool_acquire_timeout": Any,
    "broker_pool_limit": Any, "broker_port": Any, "broker_read_url": Any, "broker_transport": Any,
    "broker_transport_options": Any, "broker_use_ssl": Any, "broker_user": Any, "broker_vhost": Any,
    "broker_write_url": Any, "enable_utc": Any, "event_serializer": Any, "imports": Any, "include": Any,
    "result_accept_content": Any, "result_backend": Any, "result_backend_always_retry": Any,
    "result_backend_base_sleep_between_retries_ms": Any, "result_backend_max_retries": Any,
    "result_backend_max_sleep_between_retries_ms": Any, "result_backend_transport_options": Any,
    "result_cache_max": Any, "result_chord_expires": Any, "result_chord_join_timeout": Any,
    "result_chord_retry_interval": Any, "result_compression": Any, "result_exchange": Any, "result_exchange_type": Any,
    "result_expires": Any, "result_extended": Any, "result_failure_expires": Any, "result_persistent": Any,
    "result_serializer": Any, "task_acks_late": Any, "task_acks_on_failure": Any,
    "task_acks_on_failure_or_timeout": Any, "task_acks_on_timeout": Any, "task_allow_error_cb_on_chord_header": Any,
    "task_always_eager": Any, "task_annotations": Any, "task_compression": Any,
    "task_create_missing_queue_exchange_type": Any, "task_create_missing_queue_type": Any,
    "task_create_missing_queues": Any, "task_default_delivery_mode": Any, "task_default_exchange": Any,
    "task_default_exchange_type": Any, "task_default_priority": Any, "task_default_queue": Any,
    "task_default_queue_type": Any, "task_default_rate_limit": Any, "task_default_routing_key": Any,
    "task_eager_propagates": Any, "task_ignore_result": Any, "task_inherit_parent_priority": Any, "task_protocol": Any,
    "task_publish_retry": Any, "task_publish_retry_policy": Any, "task_queue_max_priority": Any, "task_queues": Any,
    "task_reject_on_worker_lost": Any, "task_remote_tracebacks": Any, "task_repr_maxlevels": Any,
    "task_retry_on_worker_lost": Any, "task_routes": Any, "task_send_sent_event": Any, "task_serializer": Any,
    "task_soft_time_limit": Any, "task_store_eager_result": Any, "task_store_errors_even_if_ignored": Any,
    "task_time_limit": Any, "task_track_started": Any, "timezone": Any, "worker_agent": Any, "worker_autoscaler": Any,
    "worker_cancel_long_running_tasks_on_connection_loss": Any, "worker_concurrency": Any, "worker_consumer": Any,
    "worker_deduplicate_successful_tasks": Any, "worker_detect_quorum_queues": Any, "worker_direct": Any,
    "worker_disable_prefetch": Any, "worker_disable_rate_limits": Any, "worker_enable_prefetch_count_reduction": Any,
    "worker_enable_remote_control": Any, "worker_enable_soft_shutdown_on_idle": Any, "worker_eta_task_limit": Any,
    "worker_hijack_root_logger": Any, "worker_log_color": Any, "worker_log_datefmt": Any, "worker_log_format": Any,
    "worker_lost_wait": Any, "worker_max_memory_per_child": Any, "worker_max_tasks_per_child": Any, "worker_pool": Any,
    "worker_pool_putlocks": Any, "worker_pool_restarts": Any, "worker_pool_start_method": Any,
    "worker_prefetch_multiplier": Any, "worker_proc_alive_timeout": Any, "worker_redirect_stdouts": Any,
    "worker_redirect_stdouts_level": Any, "worker_send_task_events": Any, "worker_soft_shutdown_timeout": Any,
    "worker_state_db": Any, "worker_task_log_datefmt": Any, "worker_task_log_format": Any, "worker_timer": Any,
    "worker_timer_precision": Any,
}, total=False)  # fmt: skip
