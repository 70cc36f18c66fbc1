"""Faults planted in the dashboard."""

from __future__ import annotations

from typing import Final

from tests.mutants.planting import Fault

_PAGE = "tests/browser/test_dashboard.py"

FAULTS: Final = (
    Fault(
        "dashboard",
        "the countdown of a lease runs in the wrong direction",
        "Times.tsx",
        "(now) => (now < at ? precise(at - now) : `overdue",
        "(now) => (now < at ? precise(now - at) : `overdue",
        (f"{_PAGE}::TestLive::test_a_real_lease_is_watched_through_overdue_to_ready",),
    ),
    Fault(
        "dashboard",
        "a viewer's clock that is wrong makes countdowns twice as wrong",
        "clock.ts",
        "Date.now() + (best?.offset ?? 0)",
        "Date.now() - (best?.offset ?? 0)",
        (f"{_PAGE}::TestLive::test_a_countdown_goes_by_the_servers_clock",),
    ),
    Fault(
        "dashboard",
        "the report in its frame keeps the theme that it was opened in",
        "Insights.tsx",
        "  useEffect(tell, [shown]);\n",
        "  useEffect(tell, []);\n  void shown;\n",
        ("tests/browser/test_insights.py::test_the_report_follows_the_theme_of_the_dashboard",),
    ),
    Fault(
        "dashboard",
        "a progress of exactly 0 or 1 leaves the page of its message empty",
        "Message.tsx",
        "fraction: plain(progress.fraction)",
        "fraction: progress.fraction",
        (
            "tests/browser/test_control.py::"
            "test_round_progress_and_a_time_limit_are_shown_beside_a_payload_with_its_own_digits",
        ),
    ),
    Fault(
        "dashboard",
        "a payload is inserted into the page as HTML",
        "Payload.tsx",
        "tabIndex={0} aria-label={what}>\n        {content}\n      </pre>",
        "tabIndex={0} aria-label={what}\n"
        '        dangerouslySetInnerHTML={{ __html: typeof content === "string" ? content : shown }} />',
        (f"{_PAGE}::TestSafety::test_hostile_texts_are_shown_and_never_run",),
    ),
    Fault(
        "dashboard",
        "the filter field loses what is typed while the address changes",
        "SearchField.tsx",
        "      known.current = next.trim();\n      onText(known.current);\n",
        "      onText(next.trim());\n",
        ("tests/browser/test_filter.py::test_a_letter_typed_as_soon_as_the_field_is_there_stays",),
    ),
    Fault(
        "dashboard",
        "the filter field loses the first letters of who types early",
        "keys.ts",
        "else if (event.key.length === 1) awaited += event.key;",
        "else if (event.key.length === 1) awaited = event.key;",
        ("tests/browser/test_filter.py::test_what_is_typed_before_the_field_is_there_is_kept_for_it",),
    ),
    Fault(
        "dashboard",
        "messages are replayed although the question was answered with no",
        "actions.ts",
        "    yes: `Replay ${count(ids.length)}`,\n  });\n  if (!yes) return false;\n",
        "    yes: `Replay ${count(ids.length)}`,\n  });\n  void yes;\n",
        (f"{_PAGE}::TestDoing::test_dead_letters_are_put_back_by_keyboard_alone",),
    ),
    Fault(
        "dashboard",
        "replaying one group of dead letters replays all of the queue",
        "Dead.tsx",
        "kind: alone ? null : group.kind, errorClass: group.error_class }",
        "kind: alone ? null : group.kind, errorClass: null }",
        (f"{_PAGE}::TestDoing::test_a_group_of_dead_letters_is_put_back",),
    ),
    Fault(
        "dashboard",
        "rows move under the cursor while some are selected",
        "selection.ts",
        "hold.value = chosen.size > 0 ?",
        "hold.value = chosen.size > 1000 ?",
        (f"{_PAGE}::TestDoing::test_a_range_is_selected_survives_live_updates_and_is_deleted",),
    ),
    Fault(
        "dashboard",
        "a range of rows cannot be selected",
        "Table.tsx",
        "selection.toggle(id, event.shiftKey)",
        "selection.toggle(id, event.altKey)",
        (f"{_PAGE}::TestDoing::test_a_range_is_selected_survives_live_updates_and_is_deleted",),
    ),
    Fault(
        "dashboard",
        "the next page is the first one again",
        "Pager.tsx",
        "setQuery({ before: next }, false",
        "setQuery({ before: null }, false",
        (f"{_PAGE}::TestLooking::test_a_hundred_thousand_messages_are_counted_truly_and_paged",),
    ),
    Fault(
        "dashboard",
        "a gap in the live feed is not filled",
        "live.ts",
        'on("resync", refetchAll);',
        'on("resync", () => undefined);',
        (f"{_PAGE}::TestLive::test_a_gap_in_the_live_feed_is_filled_by_reading_again",),
    ),
    Fault(
        "dashboard",
        "a queue that needs the operator is shown as one to watch",
        "Overview.tsx",
        'queue.trouble.some(({ level }) => level === "bad")',
        'queue.trouble.every(({ level }) => level === "bad")',
        (f"{_PAGE}::TestLooking::test_the_overview_says_what_is_wrong_and_leads_to_it",),
    ),
    Fault(
        "dashboard",
        "a reader is offered what only an operator may do",
        "session.ts",
        "session.value?.roles.includes(role) ?? false",
        'session.value?.roles.includes("read") ?? role === "read"',
        (f"{_PAGE}::TestDoing::test_roles_hide_what_may_not_be_done",),
    ),
    Fault(
        "dashboard",
        "editing a message rounds its large numbers",
        "exactjson.ts",
        "? raw(source) : value",
        "? Number(source) : value",
        (f"{_PAGE}::TestSafety::test_numbers_too_large_for_a_browser_are_shown_and_edited_exactly",),
    ),
)
