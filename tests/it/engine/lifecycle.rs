//! One caller, one key: the body runs once, and its outcome is replayed until the retention ends.

use std::time::Duration;

use idem_runtime::advanced::{ResultSource, with_provenance};
use idem_runtime::error::{InvalidCall, InvalidKey};
use idem_runtime::record::RecordState;
use idem_runtime::{Call, Codec, Error, Idem, Key, MemoryStore, Scope};
use serde::{Deserialize, Serialize};

use super::{Effects, Failure, LEASE, TTL, call, idem, refusal};

#[tokio::test(start_paused = true)]
async fn a_retry_gets_the_first_result_and_runs_nothing() {
    let (idem, effects) = (idem(), Effects::default());
    let first = effects.run(&idem, call("k", 1)).await.unwrap();
    let again = effects.run(&idem, call("k", 1)).await.unwrap();
    assert_eq!((first, again, effects.count()), (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn another_request_under_the_same_key_is_refused() {
    let (idem, effects) = (idem(), Effects::default());
    effects.run(&idem, call("k", 1)).await.unwrap();
    let reused = refusal(effects.run(&idem, call("k", 2)).await);
    assert!(matches!(reused, Error::KeyReused));
    assert_eq!(effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn records_differ_by_key_scope_and_operation() {
    let (idem, effects) = (idem(), Effects::default());
    let calls = [
        Call::new("a", "k", &1, TTL),
        Call::new("b", "k", &1, TTL),
        Call::new("a", "l", &1, TTL),
        Call::new("a", "k", &1, TTL).scope("ann"),
        Call::new("a", "k", &1, TTL).scope("bob"),
        Call::new("a", "k", &1, TTL).scope("ann/bob"),
        Call::new("a", "k", &1, TTL).scope("ann").scope("bob"),
    ];
    let runs = calls.len() as u32;
    for call in calls {
        effects.run(&idem, call).await.unwrap();
    }
    assert_eq!(effects.count(), runs);
}

#[tokio::test(start_paused = true)]
async fn the_scope_of_a_key_is_the_scope_of_the_call() {
    let (idem, effects) = (idem(), Effects::default());
    let scope = Scope::new("ann").unwrap();
    let carried = Key::new("k").unwrap().scoped(&scope);
    let named = Call::new("test.operation", "k", &1_u64, TTL).scope("ann");
    effects.run(&idem, named).await.unwrap();
    let carrying = Call::new("test.operation", &carried, &1_u64, TTL);
    effects.run(&idem, carrying).await.unwrap();
    assert_eq!(effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_key_can_be_used_again_after_its_ttl() {
    let (idem, effects) = (idem(), Effects::default());
    effects.run(&idem, call("k", 1)).await.unwrap();
    tokio::time::advance(TTL - Duration::from_secs(1)).await;
    effects.run(&idem, call("k", 1)).await.unwrap();
    assert_eq!(effects.count(), 1, "within the retention");

    tokio::time::advance(Duration::from_secs(2)).await;
    let other_request = effects.run(&idem, call("k", 2)).await.unwrap();
    assert_eq!(other_request, 2, "after it");
}

#[tokio::test(start_paused = true)]
async fn retention_counts_from_the_outcome_and_not_from_the_claim() {
    let (idem, effects) = (idem(), Effects::default());
    idem.run(call("k", 1), async || {
        tokio::time::sleep(TTL * 2).await;
        Ok::<_, Failure>(effects.happen())
    })
    .await
    .unwrap();
    tokio::time::advance(TTL - Duration::from_secs(1)).await;
    effects.run(&idem, call("k", 1)).await.unwrap();
    assert_eq!(effects.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_fingerprint_as_key_filters_duplicates_until_the_ttl() {
    let (idem, effects) = (idem(), Effects::default());
    let mail = |to: &'static str| Call::by_fingerprint("mail.send", to, TTL);
    effects.run(&idem, mail("ann@example.org")).await.unwrap();
    effects.run(&idem, mail("ann@example.org")).await.unwrap();
    assert_eq!(effects.count(), 1);
    effects.run(&idem, mail("bob@example.org")).await.unwrap();
    assert_eq!(effects.count(), 2);
    tokio::time::advance(TTL + Duration::from_secs(1)).await;
    effects.run(&idem, mail("ann@example.org")).await.unwrap();
    assert_eq!(effects.count(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_caller_can_read_the_provenance_of_its_result() {
    let (idem, effects) = (idem(), Effects::default());
    let (_, first) = with_provenance(effects.run(&idem, call("k", 1))).await;
    let first = first.unwrap();
    assert_eq!((first.source, first.attempt), (ResultSource::Executed, 1));

    tokio::time::advance(Duration::from_secs(60)).await;
    let (_, again) = with_provenance(effects.run(&idem, call("k", 1))).await;
    let again = again.unwrap();
    assert_eq!((again.source, again.attempt), (ResultSource::Replayed, 1));

    let (_, refused) = with_provenance(effects.run(&idem, call("k", 2))).await;
    assert_eq!(refused, None);
    let (_, no_call) = with_provenance(std::future::ready(())).await;
    assert_eq!(no_call, None);
}

#[tokio::test(start_paused = true)]
async fn with_provenance_reports_the_outer_call_even_if_its_body_makes_calls() {
    let (idem, effects) = (idem(), Effects::default());
    effects.run(&idem, call("inner", 1)).await.unwrap();
    let outer = idem.run(call("outer", 1), async || {
        effects.run(&idem, call("inner", 1)).await
    });
    let (_, provenance) = with_provenance(outer).await;
    assert_eq!(provenance.unwrap().source, ResultSource::Executed);
}

#[tokio::test(start_paused = true)]
async fn each_codec_replays_what_it_wrote_and_reads_what_the_other_wrote() {
    #[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
    struct Receipt {
        id: u64,
        lines: Vec<(String, i32)>,
        note: Option<String>,
    }
    let receipt = Receipt {
        id: u64::MAX,
        lines: vec![("ü".to_owned(), -1)],
        note: None,
    };
    let store = std::sync::Arc::new(MemoryStore::new());
    for (first, then) in [(Codec::Json, Codec::Cbor), (Codec::Cbor, Codec::Json)] {
        let key = format!("{first:?}");
        let writer = Idem::builder(store.clone()).codec(first).build();
        let reader = Idem::builder(store.clone()).codec(then).build();
        let written: Result<_, Failure> = writer
            .run(call(&key, 1), async || Ok(receipt.clone()))
            .await;
        let read: Result<Receipt, Failure> = reader
            .run(call(&key, 1), async || panic!("must be replayed"))
            .await;
        assert_eq!(
            (written.unwrap(), read.unwrap()),
            (receipt.clone(), receipt.clone())
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_that_no_longer_decodes_is_an_error_and_not_run_again() {
    let (idem, effects) = (idem(), Effects::default());
    idem.run(call("k", 1), async || {
        Ok::<_, Failure>("secret text".to_owned())
    })
    .await
    .unwrap();
    let after_deploy = refusal(effects.run(&idem, call("k", 1)).await);
    let Error::Decode(error) = &after_deploy else {
        panic!("expected a decode error, got {after_deploy:?}");
    };
    assert!(!format!("{error:?} {error} {after_deploy}").contains("secret"));
    assert_eq!(effects.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_result_that_cannot_be_stored_is_returned_once_and_not_run_again() {
    struct Unspeakable;
    impl Serialize for Unspeakable {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            Err(serde::ser::Error::custom("no"))
        }
    }
    impl<'de> Deserialize<'de> for Unspeakable {
        fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            Ok(Self)
        }
    }
    let idem = idem();
    let first = idem
        .run(call("k", 1), async || Ok::<_, Failure>(Unspeakable))
        .await;
    assert!(first.is_ok());
    let again = idem.run(call("k", 1), async || -> Result<Unspeakable, Failure> {
        panic!("must not run again")
    });
    assert!(matches!(
        again.await,
        Err(Failure::Idempotency(Error::Unrecorded))
    ));
    let record = idem.records().find("test.operation", "k").await;
    assert_eq!(record.unwrap().unwrap().state, RecordState::Unrecorded);
}

#[tokio::test(start_paused = true)]
async fn a_result_whose_encoding_panics_is_unrecorded() {
    struct Explosive;
    impl Serialize for Explosive {
        fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
            panic!("boom")
        }
    }
    impl<'de> Deserialize<'de> for Explosive {
        fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
            Ok(Self)
        }
    }
    let idem = idem();
    let first = idem
        .run(call("k", 1), async || Ok::<_, Failure>(Explosive))
        .await;
    assert!(first.is_ok());
    let again = idem.run(call("k", 1), async || -> Result<Explosive, Failure> {
        panic!("must not run again")
    });
    assert!(matches!(
        again.await,
        Err(Failure::Idempotency(Error::Unrecorded))
    ));
}

#[tokio::test(start_paused = true)]
async fn the_limit_on_the_stored_size_is_exact() {
    let idem = Idem::builder(MemoryStore::new())
        .max_result_bytes(10)
        .build();
    for (key, text, stored) in [("fits", "12345678", true), ("over", "123456789", false)] {
        let run = || idem.run(call(key, 1), async || Ok::<_, Failure>(text.to_owned()));
        assert_eq!(run().await.unwrap(), text);
        assert_eq!(run().await.is_ok(), stored, "{key}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_has_the_identity_of_its_call() {
    let idem = idem();
    let call = Call::new("op", "k", &1, TTL).scope("ann");
    idem.run_with(
        call,
        idem_runtime::advanced::RunOptions::new(),
        async |attempt| {
            assert_eq!(attempt.key().as_str(), "k");
            assert_eq!(attempt.scope().as_str(), "ann");
            assert_eq!(attempt.operation().as_str(), "op");
            assert_eq!(attempt.number(), 1);
            assert!(attempt.fencing_token().is_some());
            assert!(attempt.is_live());
            let debug = format!("{attempt:?}");
            assert!(!debug.contains("ann"), "{debug}");
            tokio::time::advance(LEASE - Duration::from_secs(1)).await;
            attempt.renew().await?;
            tokio::time::advance(LEASE - Duration::from_secs(1)).await;
            assert!(attempt.is_live(), "renewed by hand");
            Ok::<_, Failure>(())
        },
    )
    .await
    .unwrap();
}

#[tokio::test(start_paused = true)]
async fn downstream_keys_depend_only_on_the_identity_and_the_service() {
    async fn downstream(idem: &Idem<MemoryStore>, call: Call, service: &str) -> String {
        let handling = idem_runtime::advanced::RunOptions::new();
        let body = async |attempt: idem_runtime::Attempt| {
            Ok::<_, Failure>(attempt.downstream_key(service).as_str().to_owned())
        };
        idem.run_with(call, handling, body).await.unwrap()
    }
    let stripe = downstream(&idem(), call("k", 1), "stripe").await;
    // The store lost all its data and the request differs: the downstream key is still that of the same intention.
    assert_eq!(downstream(&idem(), call("k", 1), "stripe").await, stripe);
    assert_ne!(downstream(&idem(), call("k", 1), "mail").await, stripe);
    assert_ne!(downstream(&idem(), call("l", 1), "stripe").await, stripe);
    // Frozen: a deploy must not change keys that were sent to third parties before it.
    assert_eq!(stripe, "bf7ff46b-ccb1-8ba4-bf7f-22ec60cfe27f");
    let parsed = uuid::Uuid::parse_str(&stripe).unwrap();
    assert_eq!(parsed.get_version_num(), 8);

    let idem = idem();
    let mail = || Call::by_fingerprint("mail", &1, TTL);
    let tonight = downstream(&idem, mail(), "smtp").await;
    tokio::time::advance(TTL + Duration::from_secs(1)).await;
    assert_ne!(
        downstream(&idem, mail(), "smtp").await,
        tonight,
        "a new one after its ttl"
    );
}

#[tokio::test(start_paused = true)]
async fn malformed_calls_are_refused_before_anything_runs() {
    type Expected = fn(&Error) -> bool;
    let (idem, effects) = (idem(), Effects::default());
    let long = "k".repeat(256);
    let key = |text: &str| Call::new("op", text, &1, TTL);
    let cases: [(Call, Expected); 8] = [
        (key(""), |e| {
            matches!(e, Error::InvalidKey(InvalidKey::Empty))
        }),
        (key(&long), |e| {
            matches!(e, Error::InvalidKey(InvalidKey::TooLong(256)))
        }),
        (key("é"), |e| {
            matches!(e, Error::InvalidKey(InvalidKey::NotPrintable(0)))
        }),
        (key("a\n"), |e| {
            matches!(e, Error::InvalidKey(InvalidKey::NotPrintable(1)))
        }),
        (key("k").scope(""), |e| {
            matches!(e, Error::InvalidKey(InvalidKey::EmptyScope))
        }),
        (Call::new("", "k", &1, TTL), |e| {
            matches!(e, Error::InvalidCall(InvalidCall::Name))
        }),
        (Call::new("op", "k", &1, Duration::ZERO), |e| {
            matches!(e, Error::InvalidCall(InvalidCall::ZeroTtl))
        }),
        (key("k").lease(Duration::ZERO), |e| {
            matches!(e, Error::InvalidCall(InvalidCall::ZeroLease))
        }),
    ];
    for (call, expected) in cases {
        let described = format!("{call:?}");
        let error = refusal(effects.run(&idem, call).await);
        assert!(expected(&error), "{described} gave {error:?}");
    }
    assert_eq!(effects.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn extreme_durations_are_accepted() {
    let (idem, effects) = (idem(), Effects::default());
    let call = || {
        Call::new("op", "k", &1, Duration::MAX)
            .lease(Duration::MAX)
            .wait(Duration::MAX)
    };
    effects.run(&idem, call()).await.unwrap();
    effects.run(&idem, call()).await.unwrap();
    assert_eq!(effects.count(), 1);
}
