//! Plans that broke a promise once. Each stays here after its repair.

use std::time::Duration;

use idem_reference::Defect;
use idem_sim::{
    Action, CallPlan, Decision, End, Faults, Joined, Leaves, Mode, Part, Plan, Script, Setup,
    Stats, Style, TransactionEnd, What, run,
};

/// A plan without faults, in which processes call one transactional key.
fn plan(processes: usize, actions: Vec<Action>) -> Plan {
    Plan {
        seed: 1,
        setup: Setup {
            clock_rates: vec![1.0; processes],
            lease: Duration::from_millis(1500),
            store_timeout: Duration::from_millis(300),
            store_patience: Duration::from_millis(600),
            ttl: Duration::from_secs(600),
            keys: vec![Mode::Transaction],
            has_workers: false,
            has_relays: false,
            batches: false,
            claim_concurrency: 64,
            is_overloaded: false,
            cache: None,
        },
        faults: Faults {
            lost_requests: 0.0,
            lost_replies: 0.0,
            duplicates: 0.0,
            slow: 0.0,
            delay: 5,
            long_delay: 5,
            refused: 0.0,
            cuts_off: false,
            loses_rollbacks: false,
            deadlocks: 0.0,
            aborts: false,
        },
        actions,
    }
}

/// Runs a plan, which must break no promise. Returns its counters and its story.
fn keeps_promises(plan: &Plan) -> (Stats, String) {
    let report = run(plan, None);
    let story = report.trace.text();
    assert!(report.violation.is_none(), "{story}");
    (report.stats, story)
}

/// A call of a process whose body takes this time.
fn call(at: u64, process: usize, style: Style, leaves: Leaves, takes: u64, end: End) -> Action {
    Action {
        at,
        what: What::Call(CallPlan {
            process,
            key: 0,
            request: 0,
            wait: 0,
            deadline: None,
            style,
            leaves,
            script: Script::new(vec![Part::Sleep(takes), Part::Effect], end),
        }),
    }
}

#[test]
fn a_claim_that_waits_for_a_lock_beyond_a_lease_is_given_back() {
    // The first call locks the record for six seconds and rolls back. The second one, without a transaction, gives up
    // after half a second, and its claim is granted five seconds later.
    let holder = call(0, 0, Style::Plain, Leaves::Never, 6000, End::Failed);
    let waiter = call(200, 1, Style::Leased, Leaves::After(500), 0, End::Value);
    let plan = plan(2, vec![holder, waiter]);
    assert!(plan.is_prompt());
    let (_, story) = keeps_promises(&plan);
    assert!(
        story.contains("\"claim\" of process 1 key 0: granted"),
        "{story}"
    );
    assert!(
        story.contains("\"release\" of process 1 key 0: done"),
        "{story}"
    );
}

#[test]
fn a_known_outcome_is_returned_although_the_reply_to_the_rollback_is_lost() {
    let first = call(0, 0, Style::Plain, Leaves::Never, 0, End::Value);
    let again = (1..=5).map(|number| {
        let at = number * 3000;
        call(at, 0, Style::Plain, Leaves::Never, 0, End::Value)
    });
    let mut plan = plan(1, std::iter::once(first).chain(again).collect());
    plan.faults.loses_rollbacks = true;
    let (stats, story) = keeps_promises(&plan);
    assert!(
        story.contains("the reply to \"ROLLBACK\" is lost"),
        "{story}"
    );
    assert!(!story.contains("gets an error"), "{story}");
    assert_eq!(stats.replays, 6, "{story}");
}

/// A call finds an outcome, and waits for the reply to its rollback. The record is erased, and the process stands still.
#[test]
fn an_outcome_that_was_read_before_an_erasure_is_not_shared_long_after_it() {
    let caller = |at, process| call(at, process, Style::Plain, Leaves::Never, 0, End::Value);
    let actions = vec![
        caller(0, 1),
        caller(2000, 0),
        Action {
            at: 2100,
            what: What::Resolve {
                process: 1,
                key: 0,
                decision: Decision::Erase,
                thinks: 10,
            },
        },
        Action {
            at: 2200,
            what: What::Freeze {
                process: 0,
                length: 3000,
            },
        },
        caller(5000, 0),
    ];
    let mut plan = plan(2, actions);
    plan.faults.loses_rollbacks = true;
    let (stats, story) = keeps_promises(&plan);
    assert!(
        story.contains("the reply to \"ROLLBACK\" is lost"),
        "{story}"
    );
    assert_eq!(stats.effects, 2, "{story}");
}

/// The defect was one of the simulation: the end of a connection overtook its `BEGIN`.
#[test]
fn a_begin_on_a_connection_that_was_closed_opens_no_transaction() {
    let actions = vec![
        call(0, 0, Style::Plain, Leaves::Never, 0, End::Value),
        // The call has looked for a lock, and its `BEGIN` is on the way.
        Action {
            at: 3,
            what: What::Stall { length: 1000 },
        },
        Action {
            at: 15,
            what: What::Stall { length: 2000 },
        },
        Action {
            at: 20,
            what: What::Kill {
                process: 0,
                down: 3000,
            },
        },
    ];
    let (_, story) = keeps_promises(&plan(2, actions));
    assert!(story.contains("\"BEGIN\" of process 0: "), "{story}");
}

/// The defect was one of the observer: it expected the value of a record that had expired.
#[test]
fn a_record_may_expire_between_two_calls_of_one_transaction() {
    let joined = Joined {
        by_macro: true,
        twice: true,
        leaves: Leaves::Never,
        end: TransactionEnd::Commit,
        is_careless: false,
    };
    // The number of effects, with those of the calls that end each simulation.
    let effects = |frozen: Option<Action>| {
        let twice = call(0, 0, Style::Joined(joined), Leaves::Never, 0, End::Value);
        let mut plan = plan(1, [twice].into_iter().chain(frozen).collect());
        plan.setup.ttl = Duration::from_secs(1);
        keeps_promises(&plan).0.effects
    };
    let freeze = |at| Action {
        at,
        what: What::Freeze {
            process: 0,
            length: 1500,
        },
    };
    let most = (0..100).map(|at| effects(Some(freeze(at)))).max();
    // In one of the plans the process stands still between the two calls.
    assert_eq!(most, Some(effects(None) + 1));
}

/// The defect was one of the observer: it counted a lease that had ended before an operator released its record.
#[test]
fn a_lease_that_is_over_does_not_begin_again_when_the_clock_jumps_back() {
    let actions = vec![
        call(0, 0, Style::Plain, Leaves::Never, 10_000, End::Value),
        Action {
            at: 1000,
            what: What::Freeze {
                process: 0,
                length: 9000,
            },
        },
        Action {
            at: 4000,
            what: What::Resolve {
                process: 1,
                key: 0,
                decision: Decision::Release,
                thinks: 50,
            },
        },
        Action {
            at: 5000,
            what: What::ShiftClock { by: -4000 },
        },
        Action {
            at: 5100,
            what: What::Echo { process: 0, key: 0 },
        },
    ];
    let mut plan = plan(2, actions);
    plan.setup.keys = vec![Mode::Refuse];
    let (_, story) = keeps_promises(&plan);
    let granted = "\"claim\" of process 0 key 0: granted, attempt 2";
    assert!(story.contains(granted), "{story}");
}

/// The defect was one of the observer: it read an expired record by a clock that had jumped back since the claim.
#[test]
fn a_record_that_had_expired_when_it_was_claimed_stays_absent() {
    let actions = vec![
        call(0, 0, Style::Plain, Leaves::Never, 0, End::Value),
        call(2000, 0, Style::Plain, Leaves::Never, 500, End::Value),
        Action {
            at: 2300,
            what: What::ShiftClock { by: -1900 },
        },
    ];
    let mut plan = plan(1, actions);
    plan.setup.ttl = Duration::from_secs(1);
    let (_, story) = keeps_promises(&plan);
    assert!(story.contains("gets the value of run 1"), "{story}");
}

/// Seen on real servers: the clock jumped ahead, and purgers deleted the outcomes of calls that had ended a second before.
#[test]
fn a_jump_of_the_stores_clock_takes_no_outcome_away() {
    let jump = Action {
        at: 8000,
        what: What::ShiftClock { by: 259_200_000 },
    };
    let begun = call(0, 0, Style::Plain, Leaves::Never, 0, End::Value);
    let mut plan = plan(2, vec![begun, jump]);
    plan.setup.has_workers = true;
    let (stats, story) = keeps_promises(&plan);
    assert_eq!(stats.purged, 0, "{story}");
    assert!(
        story.contains("\"purge\" of process 1: removed 0"),
        "{story}"
    );
    let violation = run(&plan, Some(Defect::PurgesAsOfNow)).violation;
    assert_eq!(violation.map(|it| it.rule), Some("clock jumps"));
}

#[test]
fn a_relay_that_has_read_the_clock_is_no_purger() {
    // The relay reads the clock, the process stands still, and the clock jumps by 32 hours. Only then does the purger of this
    // process read it for the first time, so it cannot know of the jump. The observer took the relay's reading for its own.
    keeps_promises(&Plan::of(307_131));
}
