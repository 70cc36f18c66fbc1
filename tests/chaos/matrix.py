"""The fault matrix: what goes wrong, and the tests that prove what holds then.

Rows 1 to 60 are the published matrix; the rows after them are faults that it does not name. A test of a row says how it
went by `tests.faults.rows.verdict`; one that does not is counted as one case.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Row:
    """One fault, and the tests that prove what holds under it."""

    number: int
    fault: str
    #: Test files or tests, as pytest takes them.
    tests: tuple[str, ...]


def _row(number: int, fault: str, *tests: str) -> Row:
    return Row(number, fault, tuple(f"tests/{test}" for test in tests))


#: Files whose tests measure the machine or need all of it: nothing runs beside them.
ALONE: Final = (
    "tests/chaos/test_soak.py",
    "tests/faults/test_backlog.py",
    "tests/faults/test_many_clients.py",
    "tests/server/test_connections.py",
    "tests/server/test_hostile.py",
    "tests/server/test_journal_feed.py",
    "tests/spark/",
)

_CONSUMERS, _CONNECTIONS, _SERVERS, _CLOCKS, _DISK, _WAKING, _INPUT, _STATES, _SENTINEL = (
    f"faults/test_{name}.py::test_"
    for name in (
        "consumers",
        "connections",
        "servers",
        "clocks",
        "disk",
        "waking",
        "hostile_input",
        "server_states",
        "sentinel",
    )
)
_SCENARIO = "bus/test_scenario.py::Test"

ROWS: Final = (
    _row(
        1,
        "consumers killed at random moments",
        f"{_CONSUMERS}consumers_killed_at_random_moments_lose_nothing",
        "celery/test_sigkill.py",
        f"{_SCENARIO}Faults::test_nothing_is_lost_by_ten_killed_workers_and_a_killed_broker",
        "rsmq/test_faults.py::test_what_a_killed_consumer_held_is_received_again",
    ),
    _row(
        2,
        "consumer killed between receive and handler",
        f"{_CONSUMERS}a_consumer_killed_between_receive_and_handler_loses_nothing",
    ),
    _row(
        3,
        "consumer killed after its work, before its ack",
        f"{_CONSUMERS}a_consumer_killed_after_its_work_and_before_its_ack_runs_exactly_twice",
    ),
    _row(
        4,
        "consumer stopped by SIGTERM under load",
        f"{_CONSUMERS}a_terminated_consumer_finishes_what_runs_and_hands_back_the_rest_uncounted",
        f"{_CONSUMERS}a_second_signal_hands_back_everything_at_once",
        f"{_CONSUMERS}a_first_signal_hands_back_what_has_not_started_while_a_long_handler_runs",
        "celery/test_workers.py::TestFailures::test_sigterm_finishes_what_runs_and_hands_the_rest_back_uncounted",
        "rsmq/test_faults.py::test_sigterm_lets_a_consumer_finish_and_leaves_the_rest",
    ),
    _row(
        5,
        "consumer frozen beyond its lease, then woken",
        f"{_CONSUMERS}a_zombie_that_wakes_after_its_lease_settles_nothing",
    ),
    _row(6, "handler that burns CPU beyond its lease", f"{_CONSUMERS}a_busy_handler_keeps_its_lease"),
    _row(
        7,
        "messages whose handler always raises",
        f"{_CONSUMERS}poison_that_raises_is_dead_after_exactly_its_attempts_and_the_others_are_served",
        f"{_CONSUMERS}poison_that_raises_delays_the_others_no_more_than_twice",
        f"{_SCENARIO}Poison::test_every_kind_of_poison_reaches_the_archive_and_the_rest_goes_on",
    ),
    _row(
        8,
        "messages that kill their process",
        f"{_CONSUMERS}poison_that_kills_its_process_is_dead_after_exactly_its_attempts_and_alone",
        "celery/test_workers.py::TestFailures::test_a_task_that_always_kills_is_dead_in_the_end_with_the_reason",
        f"{_SCENARIO}Poison::test_what_kills_the_whole_worker_is_counted_too",
    ),
    _row(9, "producer killed while sending", f"{_CONNECTIONS}every_id_a_killed_producer_got_back_is_delivered_whole"),
    _row(
        10,
        "answer of the server lost",
        f"{_CONNECTIONS}a_send_whose_reply_is_lost_is_stored_once",
        f"{_CONNECTIONS}a_batch_whose_reply_is_lost_is_stored_once",
        f"{_CONNECTIONS}an_ack_whose_reply_is_lost_is_one_ack_and_no_error",
        f"{_CONNECTIONS}a_receive_whose_reply_is_lost_comes_again_after_its_lease",
        "faults/test_lease_journal.py::test_a_claim_whose_reply_is_lost_makes_one_row_per_lease",
        "faults/test_lease_journal.py::test_a_verdict_whose_reply_is_lost_is_carried_out_once_and_remembered",
        "celery/test_faults.py::TestLostAnswers",
        "rsmq/test_faults.py::TestLostAnswers",
        "faults/test_http_client.py::test_a_send_is_repeated_and_stored_once",
    ),
    _row(
        11,
        "request lost",
        f"{_CONNECTIONS}a_lost_request_is_made_again",
        f"{_CONNECTIONS}a_send_the_server_never_answers_is_unconfirmed_and_safe_to_repeat",
        "faults/test_http_client.py::test_a_send_that_nobody_answers_is_in_doubt",
    ),
    _row(12, "storm of connection resets", f"{_CONNECTIONS}a_storm_of_resets_loses_and_doubles_nothing"),
    _row(
        13,
        "half-open connection",
        f"{_CONNECTIONS}a_half_open_connection_is_noticed_and_work_goes_on_after_it_heals",
        f"{_CONNECTIONS}a_call_on_a_half_open_connection_ends_in_a_typed_error",
        "celery/test_workers.py::TestOutages::test_a_half_open_connection_is_noticed_and_left",
    ),
    _row(
        14,
        "slow line, single bytes",
        f"{_CONNECTIONS}latency_and_single_bytes_slow_down_and_break_nothing",
        f"{_CONNECTIONS}an_early_look_at_delayed_messages_through_a_slow_line_gets_nothing",
    ),
    _row(
        15,
        "server killed, append-only file on",
        f"{_SERVERS}a_killed_server_loses_nothing_confirmed_and_consumers_go_on",
        f"{_SERVERS}a_server_that_is_down_at_the_start_is_a_clear_error_within_5_seconds",
        "celery/test_workers.py::TestOutages::test_a_worker_goes_on_after_its_server_restarted",
        "rsmq/test_faults.py::test_a_consumer_waits_for_a_server_that_was_away",
    ),
    _row(
        16,
        "server killed without a file (the loss must be counted)",
        f"{_SERVERS}without_an_append_only_file_a_kill_loses_everything_and_the_count_says_so",
    ),
    _row(
        17,
        "server frozen",
        f"{_SERVERS}a_server_silent_for_longer_than_a_lease_doubles_nothing_and_is_served_again_at_once",
    ),
    _row(18, "server loading its data", f"{_SERVERS}a_loading_server_is_not_ready_and_then_goes_on"),
    _row(
        19,
        "append-only file without its last bytes",
        f"{_DISK}a_file_without_its_last_bytes_costs_the_last_send_and_no_other",
    ),
    _row(
        20,
        "bit flipped in a stored message",
        "faults/test_stored_data.py::test_a_flipped_bit_anywhere_in_a_payload_is_found_and_the_message_is_dead",
        "faults/test_stored_data.py::test_a_flipped_bit_anywhere_in_a_stored_message_never_blocks_the_others",
        "faults/test_stored_data.py::test_behind_a_corrupt_head_the_next_message_comes_at_once",
    ),
    _row(
        21,
        "append-only file with a damaged structure",
        f"{_DISK}a_damaged_file_keeps_the_server_from_starting_and_the_runbook_saves_what_lies_before",
    ),
    _row(
        22,
        "server at maxmemory",
        f"{_SERVERS}a_full_server_refuses_sends_and_its_backlog_is_drained_to_nothing",
        f"{_SERVERS}an_expired_lease_at_maxmemory_still_dies_with_its_reason",
        "rsmq/test_faults.py::test_at_maxmemory_sends_are_refused_and_the_queue_is_drained",
    ),
    _row(
        23,
        "eviction policy that deletes",
        f"{_SERVERS}a_server_that_would_evict_messages_is_refused",
        "faults/test_holding_on.py::test_a_consumer_looks_at_the_server_again_within_a_minute",
    ),
    _row(
        24,
        "disk full, fsync every second",
        f"{_DISK}a_full_disk_refuses_writes_until_there_is_room_and_loses_nothing",
    ),
    _row(
        25,
        "disk full, fsync at every write",
        f"{_DISK}a_full_disk_ends_a_server_that_writes_at_once_and_nothing_confirmed_is_lost",
    ),
    _row(
        26,
        "master dies, sentinels name another",
        f"{_SENTINEL}a_dead_master_is_followed_and_what_the_replica_confirmed_survives",
        f"{_SENTINEL}asyncio_asks_the_sentinels_too",
    ),
    _row(
        27,
        "master dies, its replica lags behind",
        f"{_SENTINEL}a_lagging_replica_loses_what_only_the_master_had_and_nothing_it_confirmed",
    ),
    _row(
        28,
        "master demoted under load",
        f"{_SENTINEL}a_master_demoted_under_load_is_left_and_what_the_replica_confirmed_is_served",
        f"{_STATES}a_master_that_became_a_replica_sends_its_clients_back_to_the_sentinels",
    ),
    _row(
        29,
        "split brain: clients beside a master that was replaced",
        "faults/test_split_brain.py::test_a_master_that_was_replaced_takes_no_more_writes_and_loses_nothing_confirmed",
    ),
    _row(30, "dashboard pointed at a replica", "server/test_replica.py"),
    _row(
        31,
        "scripts flushed under load",
        f"{_SERVERS}forgotten_scripts_are_no_error_to_anybody",
        "rsmq/test_faults.py::TestScripts",
    ),
    _row(
        32,
        "two versions of the library at once",
        "faults/test_rolling_upgrade.py::test_consumers_of_two_versions_share_a_queue_and_lose_nothing",
    ),
    _row(
        33,
        "server clock jumps",
        f"{_CLOCKS}a_jump_ahead_ends_leases_and_delays_and_nothing_is_lost_or_early",
        f"{_CLOCKS}a_jump_back_delays_by_at_most_the_jump_and_nothing_is_stuck_after",
        f"{_CLOCKS}a_rate_is_not_stuck_for_the_length_of_a_jump_back",
    ),
    _row(
        34,
        "clients' clocks are wrong",
        f"{_CLOCKS}a_consumer_or_producer_whose_clock_is_wrong_makes_no_difference",
        f"{_CLOCKS}a_lease_is_counted_by_the_server_whatever_the_consumer_thinks_the_time_is",
        "celery/test_faults.py::TestDelays::test_a_clock_that_is_wrong_does_not_change_a_delay",
        "rsmq/test_faults.py::test_the_clock_is_the_servers_alone",
    ),
    _row(35, "server clock swings", f"{_CLOCKS}a_clock_that_swings_every_second_makes_nothing_early"),
    _row(36, "payloads at the limit and beyond", "faults/test_payload_sizes.py"),
    _row(37, "payloads of every kind", "contract/test_payloads.py"),
    _row(
        38,
        "hostile names",
        f"{_INPUT}a_hostile_name_is_refused_at_every_door",
        f"{_INPUT}whatever_name_comes_in_no_key_lies_outside_its_queue",
        f"{_INPUT}an_odd_name_stays_inside_its_own_keys",
    ),
    _row(
        39,
        "key of a wrong type planted",
        "faults/test_stored_data.py::test_a_key_of_the_wrong_type_is_named_and_nothing_is_lost",
        "faults/test_lease_journal.py::test_a_lease_journal_s_key_of_the_wrong_type_is_named",
        "rsmq/test_faults.py::TestQueues::test_a_key_of_another_type_is_named",
    ),
    _row(
        40,
        "bad numbers",
        f"{_INPUT}bad_seconds_are_refused_before_anything_is_stored",
        f"{_INPUT}bad_whole_numbers_are_refused_before_anything_is_stored",
        f"{_INPUT}any_priority_and_delay_is_kept_or_refused_with_its_name",
        f"{_INPUT}the_scripts_refuse_bad_numbers_themselves",
    ),
    _row(
        41,
        "hundreds of other queues",
        "faults/test_many_clients.py::test_a_call_is_the_same_work_however_many_queues_there_are",
    ),
    _row(
        42,
        "a backlog, and many delayed messages due at once",
        "faults/test_backlog.py::test_a_backlog_with_many_due_at_once_is_served_in_short_scripts",
    ),
    _row(
        43,
        "five hundred clients lose their server at once",
        "faults/test_many_clients.py::test_clients_that_lost_their_server_at_once_do_not_return_at_once",
        "faults/test_many_clients.py::test_every_pause_is_drawn_from_the_whole_span",
        "faults/test_many_clients.py::test_real_clients_that_lost_their_server_at_once_all_come_back_and_leave_it_idle",
    ),
    _row(44, "one message, two hundred sleepers", f"{_WAKING}one_message_wakes_at_most_two_of_two_hundred"),
    _row(
        45,
        "several sweepers at once, and none",
        f"{_WAKING}sweepers_that_run_at_once_double_nothing",
        f"{_WAKING}a_queue_nobody_consumes_is_swept_in_time",
    ),
    _row(
        46,
        "expired lease behind ten thousand long ones",
        f"{_WAKING}an_expired_lease_behind_ten_thousand_long_ones_comes_back_at_once",
    ),
    _row(
        47,
        "delay of more than a year",
        f"{_CLOCKS}more_than_a_year_away_is_delivered",
        "celery/test_faults.py::TestDelays::test_a_delay_longer_than_every_time_to_live_is_kept",
    ),
    _row(
        48,
        "HTTP server killed with open requests",
        "server/test_messages.py::TestKilled::test_what_was_answered_201_is_stored_and_a_repeated_key_is_one_message",
        "server/test_messages.py::TestIdempotencyKey",
    ),
    _row(49, "live streams that nobody reads", "server/test_journal_feed.py::TestBounded"),
    _row(50, "slow, large and endless requests", "server/test_connections.py", "server/test_hostile.py"),
    _row(
        51,
        "calls: callers gone, late and forged answers",
        "bus/test_bus.py::TestReplies::test_a_reply_goes_nowhere_but_to_its_caller",
        f"{_SCENARIO}Calls::test_a_call_not_begun_before_its_timeout_is_not_begun_later",
        f"{_SCENARIO}Calls::test_a_thousand_calls_under_load_are_answered_though_a_server_is_killed",
    ),
    _row(52, "subscriber away while events are published", "bus/test_subscriber_away.py"),
    _row(
        53,
        "event nobody listens to",
        f"{_SCENARIO}Events::test_an_event_nobody_listens_to_is_kept_or_refused",
        "celery/test_unroutable.py",
    ),
    _row(
        54,
        "replay killed half way",
        "faults/test_replay_killed.py",
        "spark/test_replay.py::TestKilled::"
        "test_a_replay_killed_twice_puts_each_message_back_once_whoever_acks_meanwhile",
    ),
    _row(
        55,
        "dead letters full",
        "contract/test_limits.py::test_too_many_dead_letters_refuse_sends_and_drop_nothing",
        "bus/test_bus.py::TestArchive::test_a_full_archive_refuses_and_nothing_is_lost",
    ),
    _row(
        56,
        "RabbitMQ killed, restarted, rejecting",
        "rabbitmq/test_kills.py",
        "bus/test_verdicts.py",
        f"{_SCENARIO}Faults::test_a_restarted_broker_keeps_what_waits_and_services_go_on",
        "rabbitmq/test_ladder.py::"
        "test_a_rejected_message_comes_back_to_its_queue_after_a_second_and_its_deaths_are_counted",
    ),
    _row(
        57,
        "Celery: workers killed, connections cut, brokers killed",
        "celery/test_sigkill.py",
        "celery/test_broker_away.py",
        "celery/test_workers.py::TestFailures",
        "celery/test_workers.py::TestOutages",
    ),
    _row(
        58,
        "Spark killed in the middle of a batch",
        "spark/test_pipeline.py::TestKilled",
        "spark/test_consumer_crashes.py::test_killed_with_all_its_processes_it_goes_on_without_loss_or_doubles",
    ),
    _row(59, "soak: load and random faults for a long time", "chaos/test_soak.py"),
    _row(
        60,
        "observers away: journal reader, audit, dashboard, store",
        "faults/test_observers.py",
        "bus/test_bus.py::TestStore",
    ),
    _row(61, "cluster slot moves under load", "faults/test_cluster_move.py"),
    _row(62, "users of an embedded server killed or starting at once", "faults/test_embedded.py"),
    _row(63, "client used on both sides of a fork", f"{_WAKING}a_client_works_on_both_sides_of_a_fork"),
    _row(
        64,
        "who fires schedules killed at random moments",
        "faults/test_schedules.py",
        "celery/test_beat.py::test_two_beats_that_are_killed_and_restarted_send_each_tick_once",
    ),
)
