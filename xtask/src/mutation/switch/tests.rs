//! Texts with mutants in them.

use super::*;

const TEXT: &str = "\
fn f(a: u32, b: bool) -> bool {
    match a {
        1 if b => !b,
        2 => a + 1 > 2 && b,
        _ => false,
    }
}
const C: u32 = 1 + 2;
";

fn mutant(genre: Genre, (line, column): (usize, usize), end: usize, with: &str) -> Mutant {
    let place = |column| Position { line, column };
    Mutant {
        name: format!("{genre:?} {line}:{column} {with}"),
        file: "src/f.rs".to_owned(),
        span: Place {
            start: place(column),
            end: place(end),
        },
        replacement: with.to_owned(),
        genre,
    }
}

#[test]
fn all_mutants_of_a_file_are_in_one_text() {
    let mutants = [
        mutant(Genre::FnValue, (2, 5), 6, "true"),
        mutant(Genre::MatchArmGuard, (3, 14), 15, "true"),
        mutant(Genre::UnaryOperator, (3, 19), 20, ""),
        mutant(Genre::MatchArm, (4, 9), 29, ""),
        mutant(Genre::BinaryOperator, (4, 16), 17, "-"),
        mutant(Genre::BinaryOperator, (4, 20), 21, ">="),
        mutant(Genre::BinaryOperator, (4, 24), 26, "||"),
        mutant(Genre::BinaryOperator, (8, 18), 19, "*"),
    ];
    let numbered: Vec<_> = mutants.iter().enumerate().collect();
    let switched = switched(TEXT, &numbered).expect("the text is valid");
    let text = switched.text.replace("crate::mutation_switch::is_on", "on");
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[1], "    if on(0) { return (true); } match a {");
    assert_eq!(
        lines[2],
        "        1 if (if on(1) { true } else { b }) => (on(2) ^ !b),"
    );
    assert_eq!(
        lines[3],
        "        2 if !on(3)  => (on(6) ^ ((on(6) ^ ((match (&((match ((a ), ( 1)) \
         { (l, r) => if on(4) { l - r } else { l + r } }) ), &( 2)) \
         { (l, r) => if on(5) { *l >= *r } else { *l > *r } }) )) && (on(6) ^ ( b)))),"
    );
    assert_eq!(lines[7], "const C: u32 = 1 + 2;");
    assert_eq!(switched.mutants, (0..7).collect());
    syn::parse_file(&switched.text).expect("it is Rust");
}

#[test]
fn an_error_is_about_the_mutant_in_whose_text_it_is() {
    let mutants = [
        mutant(Genre::BinaryOperator, (4, 16), 17, "-"),
        mutant(Genre::BinaryOperator, (4, 16), 17, "*"),
    ];
    let numbered: Vec<_> = mutants.iter().enumerate().collect();
    let switched = switched(TEXT, &numbered).expect("the text is valid");
    let place = |text: &str| {
        let at = switched.text.find(text).expect("the text is there");
        at..at + text.len()
    };
    assert_eq!(switched.at(&place("l * r")), [1]);
    assert_eq!(switched.at(&place("l + r")), [0, 1]);
    assert_eq!(switched.at(&place("fn f")), [0; 0]);
}
