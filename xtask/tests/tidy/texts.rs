//! File conventions: length, white space, opening comments, and forbidden texts.

use proc_macro2::{TokenStream, TokenTree};

use crate::{File, check, repository};

/// Maximum length of a Rust file, in lines. Longer files should be split.
const MAX_LINES: usize = 700;

#[test]
fn no_file_is_too_long() {
    check(repository().iter().filter(|it| it.is_rust()), too_long);
    let long = "\n".repeat(MAX_LINES + 1);
    assert_eq!(too_long(&File::new("a.rs", &long)).len(), 1);
    assert_eq!(too_long(&File::new("a.rs", &long[1..])).len(), 0);
}

fn too_long(file: &File) -> Vec<String> {
    let lines = file.text.lines().count();
    if lines > MAX_LINES {
        return vec![format!(
            "{lines} lines, more than {MAX_LINES}: split the file"
        )];
    }
    vec![]
}

#[test]
fn no_line_ends_in_spaces_and_every_file_ends_in_one_newline() {
    let files = repository();
    check(files.iter().filter(|it| !it.is_output()), ragged);
    assert_eq!(ragged(&File::new("a", "x \ny\t\n")).len(), 2);
    assert_eq!(ragged(&File::new("a", "x")).len(), 1);
    assert_eq!(ragged(&File::new("a", "x\n\n")).len(), 1);
    assert_eq!(ragged(&File::new("a", "x\r\n")).len(), 1);
    assert_eq!(ragged(&File::new("a", "x\n\ny\n")).len(), 0);
}

fn ragged(file: &File) -> Vec<String> {
    let mut wrong: Vec<_> = (1..)
        .zip(file.text.split('\n'))
        .filter(|(_, line)| line.trim_end() != *line)
        .map(|(number, _)| format!("line {number} ends in white space"))
        .collect();
    if !file.text.is_empty() && (!file.text.ends_with('\n') || file.text.ends_with("\n\n")) {
        wrong.push("does not end in one newline".to_owned());
    }
    wrong
}

#[test]
fn no_module_file_is_called_mod() {
    check(&repository(), mod_rs);
    assert_eq!(mod_rs(&File::new("src/a/mod.rs", "")).len(), 1);
    assert_eq!(mod_rs(&File::new("src/amod.rs", "")).len(), 0);
}

fn mod_rs(file: &File) -> Vec<String> {
    if file.path.ends_with("/mod.rs") {
        return vec!["write `foo.rs` beside `foo/`, not `foo/mod.rs`".to_owned()];
    }
    vec![]
}

#[test]
fn every_file_opens_with_a_doc_comment() {
    let files = repository();
    check(
        files
            .iter()
            .filter(|it| it.is_rust() && !it.is_ui_case() && !it.is_output()),
        undescribed,
    );
    assert_eq!(
        undescribed(&File::new("a.rs", "use b;\n//! Late.\n")).len(),
        1
    );
    assert_eq!(undescribed(&File::new("a.rs", "//!\n")).len(), 1);
    assert_eq!(undescribed(&File::new("a.rs", "//! Why.\n")).len(), 0);
}

fn undescribed(file: &File) -> Vec<String> {
    let says = file
        .text
        .lines()
        .next()
        .and_then(|it| it.strip_prefix("//! "));
    if says.is_none_or(|it| it.trim().is_empty()) {
        return vec!["open the file with a `//!` line that says what it contains".to_owned()];
    }
    vec![]
}

#[test]
fn no_placeholder_is_left() {
    check(repository().iter().filter(|it| it.is_rust()), left_over);
    let bad = "fn f() { todo!(); g(dbg!(1)); if x { unimplemented!(\"later\") } }";
    assert_eq!(left_over(&File::new("a.rs", bad)).len(), 3);
    let good = "// todo!()\nfn f() { log(\"todo!()\"); todo(); }";
    assert_eq!(left_over(&File::new("a.rs", good)).len(), 0);
}

fn left_over(file: &File) -> Vec<String> {
    let tokens: TokenStream = match file.text.parse() {
        Ok(tokens) => tokens,
        // Some test cases for the compiler contain incomplete code.
        Err(_) if file.is_ui_case() => return vec![],
        Err(error) => return vec![format!("does not parse: {error}")],
    };
    let mut wrong = Vec::new();
    visit(tokens, &mut |pair| {
        if let [TokenTree::Ident(name), TokenTree::Punct(mark)] = pair
            && mark.as_char() == '!'
            && ["todo", "unimplemented", "dbg"].contains(&name.to_string().as_str())
        {
            wrong.push(format!("remove `{name}!`"));
        }
    });
    wrong
}

#[test]
fn no_event_has_a_field_that_hides_its_text() {
    let files = repository();
    let of_users = |it: &&File| it.is_rust() && !it.is_ui_case() && !it.path.starts_with("tests/");
    check(files.iter().filter(of_users), hiding_fields);
    let bad = "fn f() { tracing::warn!(message = 1, \"text\"); info!(message, \"text\"); warn!(?message) }";
    assert_eq!(hiding_fields(&File::new("a.rs", bad)).len(), 3);
    let good = "fn f() { tracing::warn!(message_id = message, \"message\"); other!(message = 1); }";
    assert_eq!(hiding_fields(&File::new("a.rs", good)).len(), 0);
}

/// Fields of events with the name under which tracing stores the event's text. In JSON, one would replace the other.
fn hiding_fields(file: &File) -> Vec<String> {
    const EVENTS: [&str; 6] = ["error", "warn", "info", "debug", "trace", "event"];
    let Ok(tokens) = file.text.parse::<TokenStream>() else {
        // Another check reports a file that does not parse.
        return vec![];
    };
    let mut name = None;
    let mut wrong = Vec::new();
    visit(tokens, &mut |pair| match pair {
        [TokenTree::Ident(word), TokenTree::Punct(mark)] if mark.as_char() == '!' => {
            name = Some(word.to_string());
        }
        [TokenTree::Punct(mark), TokenTree::Group(group)]
            if mark.as_char() == '!'
                && name.take().is_some_and(|it| EVENTS.contains(&&*it))
                && has_message(group.stream()) =>
        {
            wrong.push("rename the field `message` of an event".to_owned());
        }
        _ => {}
    });
    wrong
}

/// Returns true if one of the arguments is a field with the name `message`.
fn has_message(arguments: TokenStream) -> bool {
    let tokens: Vec<_> = arguments.into_iter().collect();
    let mut arguments =
        tokens.split(|it| matches!(it, TokenTree::Punct(mark) if mark.as_char() == ','));
    arguments.any(|argument| {
        let mut words = argument.iter().map(ToString::to_string);
        let first = words.find(|it| !["?", "%"].contains(&&**it));
        first.as_deref() == Some("message") && words.next().is_none_or(|it| it == "=")
    })
}

/// Visits every pair of adjacent tokens, including those inside of groups.
fn visit(tokens: TokenStream, visitor: &mut impl FnMut(&[TokenTree; 2])) {
    let tokens: Vec<_> = tokens.into_iter().collect();
    for token in &tokens {
        if let TokenTree::Group(group) = token {
            visit(group.stream(), visitor);
        }
    }
    for pair in tokens.array_windows() {
        visitor(pair);
    }
}

#[test]
fn no_file_has_a_path_of_one_machine() {
    let files = repository();
    check(&files, machine_path);
    // Assembled from parts, because the check reads this file too.
    for path in ["home/me", "root/x", "tmp/x", "work/x", "Users/me"] {
        let bad = format!("see `/{path}`");
        assert_eq!(machine_path(&File::new("a.md", &bad)).len(), 1, "{bad}");
    }
    let good = "target/tmp/x, https://a.example/work/x, .library/home/";
    assert_eq!(machine_path(&File::new("a.md", good)).len(), 0);
}

fn machine_path(file: &File) -> Vec<String> {
    const ROOTS: [&str; 5] = ["home", "root", "tmp", "work", "Users"];
    let mut wrong = Vec::new();
    for (number, line) in (1..).zip(file.text.lines()) {
        for root in ROOTS {
            let path = format!("/{root}/");
            let absolute = line.match_indices(&path).any(|(at, _)| {
                let before = line[..at].chars().next_back();
                !before.is_some_and(|it| it.is_alphanumeric() || "._-}$~".contains(it))
            });
            if absolute {
                wrong.push(format!("line {number} has a path of one machine, {path}"));
            }
        }
    }
    wrong
}

#[test]
fn no_file_refers_to_a_ticket() {
    let files = repository();
    check(files.iter().filter(|it| !it.is_output()), ticket);
    for number in [1, 23] {
        for word in ["#", "issue ", "Issue #", "ticket ", "PR ", "issues/"] {
            let bad = format!("// as {word}{number} says");
            assert_eq!(ticket(&File::new("a.rs", &bad)).len(), 1, "{bad}");
        }
    }
    let good =
        "r#\"1\"#, [part](#1-what), &#39;, RFC 8949, issue them 2 keys, &format!(\"{:#2x}\")";
    assert_eq!(ticket(&File::new("a.md", good)), [""; 0]);
}

fn ticket(file: &File) -> Vec<String> {
    (1..)
        .zip(file.text.lines())
        .filter(|(_, line)| {
            let numbered = |word: &str| {
                line.match_indices(word).any(|(at, _)| {
                    let before = line[..at].chars().next_back();
                    let after = line[at + word.len()..].chars().next();
                    after.is_some_and(|it| it.is_ascii_digit())
                        && !before.is_some_and(|it| it.is_alphanumeric() || "(&:".contains(it))
                })
            };
            let words = [
                "#", "issue ", "Issue ", "ticket ", "Ticket ", "PR ", "issues/",
            ];
            words.into_iter().any(numbered)
        })
        .map(|(number, _)| {
            format!("line {number} refers to a ticket: write the reason instead of the number")
        })
        .collect()
}
