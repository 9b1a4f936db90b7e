//! The trials of the case table on each store.

use std::sync::{Arc, LazyLock};

use idem_runtime::conformance::{Case, Violation};
use idem_runtime::{Store, conformance};
use idem_tests::places::{self, Files, Suite};
use libtest_mimic::{Failed, Trial};
use tokio::runtime::Runtime;

use crate::toy::ToyStore;
use crate::used;

/// Creates a trial for each case on each store. All cases share one store concurrently, as the table promises. A trial
/// whose server variable is not set is ignored, after a line that says so, and fails if it is run anyway. A server that
/// cannot be reached fails its trials.
pub(crate) fn trials(runtime: &Arc<Runtime>, files: &Files) -> Vec<Trial> {
    let mut trials = Vec::new();
    let mut suites = places::suites(files);
    suites.push(Suite::new("toy", &[], async || Ok(ToyStore::new(None))));
    suites.push(Suite::new("used", &[], used::store));
    for suite in suites {
        let Suite {
            name,
            needs,
            lacks,
            open,
        } = suite;
        let unset = needs.iter().find(|it| std::env::var_os(it).is_none());
        if let Some(variable) = unset {
            eprintln!("{name} needs {variable}, which is not set: cargo xtask test runs it");
        }
        // Opened by the first case that runs, so that listing the cases, or running a few, needs no server.
        let runtime = Arc::clone(runtime);
        let store: Arc<LazyLock<Opened, _>> = Arc::new(LazyLock::new({
            let runtime = Arc::clone(&runtime);
            move || open(&runtime).map_err(|error| format!("{error:#}"))
        }));
        for case in conformance::cases() {
            let is_left_out = lacks.contains(&case.needs());
            let (store, runtime) = (Arc::clone(&store), Arc::clone(&runtime));
            let trial = Trial::test(format!("{name}::{}", case.name()), move || {
                let store = LazyLock::force(&store).as_ref().map_err(Failed::from)?;
                match is_left_out {
                    false => Ok(runtime.block_on(decided(case, store))?),
                    true if case.applies_to(&**store) => {
                        Err("the case applies and is left out".into())
                    }
                    true => Ok(()),
                }
            });
            trials.push(trial.with_ignored_flag(unset.is_some()));
        }
    }
    trials
}

/// Runs a case. Repeats a case that could not decide, twice at most: the machine was too slow.
async fn decided(case: &Case, store: &Arc<dyn Store>) -> Result<(), Violation> {
    let mut tries = 1;
    loop {
        match case.run(Arc::clone(store)).await {
            Err(violation) if violation.inconclusive && tries < 3 => tries += 1,
            outcome => return outcome,
        }
    }
}

/// The store, or the error of opening it.
type Opened = Result<Arc<dyn Store>, String>;
