//! Each kind of mistake has its section in the book, and its own function among the wrong ones.

use idem_testing::Finding;

#[test]
fn each_finding_has_a_section_in_the_book() {
    let page = include_str!("../../docs/book/src/findings.md");
    let wrong = [
        include_str!("wrong/effects.rs"),
        include_str!("wrong/keys.rs"),
        include_str!("wrong/modes.rs"),
        include_str!("wrong/recoveries.rs"),
        include_str!("wrong/requests.rs"),
        include_str!("wrong/results.rs"),
        include_str!("wrong/services.rs"),
        include_str!("wrong/steps.rs"),
        include_str!("wrong/tasks.rs"),
        include_str!("wrong/transactions.rs"),
    ]
    .concat();
    for finding in Finding::ALL {
        let heading = format!("\n## {}\n", finding.name());
        assert!(page.contains(&heading), "{finding} has no section");
        assert!(
            wrong.contains(&format!("Finding::{finding:?}")),
            "no function shows {finding}"
        );
    }
    let sections = page.matches("\n## ").count();
    assert_eq!(sections, Finding::ALL.len(), "a section is about nothing");
}
