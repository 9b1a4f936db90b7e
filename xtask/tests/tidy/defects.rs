//! The page of deliberate defects has each defect of the simulation, and the page of proofs counts them.

use std::collections::BTreeSet;

use crate::{File, repository};

const MUTANTS: &str = "tests/sim/mutants.toml";
const PAGE: &str = "docs/design/deliberate-defects.md";
const PROOF: &str = "docs/proof.md";

/// Beginning of the head of each table.
const OF_ENGINE: &str = "| defect of the engine |";
const OF_STORE: &str = "| defect of the store |";

#[test]
fn each_defect_of_the_engine_is_a_row_with_its_number_of_seeds() {
    let files = repository();
    let wrong = wrong_rows(&about(file(&files, MUTANTS)), file(&files, PAGE));
    assert!(wrong.is_empty(), "{PAGE}: {wrong:#?}");

    let head = format!("{OF_ENGINE} seeds | broken promise |\n| --- | --: | --- |");
    let defects = ["a".to_owned(), "b".to_owned()];
    let (a, b) = ("| a | 1 | `x` |", "| b | 12,345 | `y` |");
    for (rows, count) in [
        (vec![a, b], 0),
        (vec![a], 1),
        (vec![a, b, "| c | 1 | `x` |"], 1),
        (vec![a, b, b], 1),
        (vec![a, "| b | – | `y` |"], 1),
        (vec![a, "| b | 1 | |"], 1),
        (vec![a, b, "", "| c | 1 | `x` |"], 0),
    ] {
        let page = format!("{head}\n{}\n", rows.join("\n"));
        assert_eq!(wrong_rows(&defects, &page).len(), count, "{page}");
    }
}

#[test]
fn the_page_of_proofs_counts_the_defects() {
    let files = repository();
    let engine = about(file(&files, MUTANTS)).len();
    let store = rows(file(&files, PAGE), OF_STORE).count();
    let sentence = format!("all {engine} defects of the engine and all {store} of the store");
    let words: Vec<_> = file(&files, PROOF).split_whitespace().collect();
    assert!(
        words.join(" ").contains(&sentence),
        "{PROOF} does not say `{sentence}`"
    );
}

fn file<'a>(files: &'a [File], path: &str) -> &'a str {
    let file = files.iter().find(|it| it.path == path);
    &file.unwrap_or_else(|| panic!("there is no {path}")).text
}

/// Descriptions of the defects in the file.
fn about(mutants: &str) -> Vec<String> {
    let table: toml::Table = mutants.parse().unwrap();
    let mutants = table["mutant"].as_array().unwrap();
    let about = mutants.iter().map(|it| it["about"].as_str().unwrap());
    about.map(str::to_owned).collect()
}

/// Rows below the head of a table.
fn rows<'a>(page: &'a str, head: &str) -> impl Iterator<Item = &'a str> {
    let lines = page.lines().skip_while(move |line| !line.starts_with(head));
    lines.skip(2).take_while(|line| line.starts_with('|'))
}

fn wrong_rows(defects: &[String], page: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut missing: BTreeSet<_> = defects.iter().map(String::as_str).collect();
    for row in rows(page, OF_ENGINE) {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [defect, seeds, promise] = cells[..] else {
            wrong.push(format!("`{row}` does not have three cells"));
            continue;
        };
        if !missing.remove(defect) {
            wrong.push(format!("`{defect}` is not in {MUTANTS}, or has two rows"));
        }
        let is_number = seeds.replace(',', "").parse::<u64>().is_ok();
        if !is_number || !promise.starts_with('`') {
            wrong.push(format!(
                "`{defect}` lacks seeds or promise; `cargo xtask prove --mutants` prints them"
            ));
        }
    }
    let missing = missing.iter().map(|it| format!("`{it}` has no row"));
    wrong.extend(missing);
    wrong
}
