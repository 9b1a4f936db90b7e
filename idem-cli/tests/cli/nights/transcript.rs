//! The blocks of the page, which are compared with what the service and the command really answer.

use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::{fmt::Write as _, fs};

use idem_runtime::Error;
use idem_runtime::http::Problem;
use serde::Serialize;
use tempfile::TempDir;

use super::super::{Place, Ran};
use super::service::SECRET;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/book/src/nights.md");
/// Tests of several stores may write the page.
static WRITING: Mutex<()> = Mutex::new(());
/// Largest number of commands between the alert and the end of a night.
const MOST_COMMANDS: usize = 3;

/// Lines that an operator sees in a night.
pub(super) struct Transcript<'a> {
    place: &'a Place,
    /// Current folder of the commands. It has the file with the secret.
    folder: TempDir,
    text: String,
    commands: usize,
    has_counts: bool,
}

impl<'a> Transcript<'a> {
    pub(super) fn new(place: &'a Place) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("fingerprint.secret"), SECRET).unwrap();
        Self {
            place,
            folder,
            text: String::new(),
            commands: 0,
            has_counts: false,
        }
    }

    /// Leaves all numbers out of the comparison: how many records fill a store differs.
    pub(super) fn with_counts(self) -> Self {
        Self {
            has_counts: true,
            ..self
        }
    }

    /// Adds a response to a client: the problem that the service answers for this error.
    pub(super) fn refused(&mut self, error: &Error) {
        let problem = Problem::from(error);
        let (kind, after) = (problem.kind(), problem.retry_after());
        let after = after.map_or_else(String::new, |it| format!(", Retry-After: {}", it.as_secs()));
        let status = kind.status();
        let title = kind.title();
        self.line(&format!(
            "client: {status} ({}){after}\n        {title}",
            kind.slug()
        ));
    }

    /// Adds the answer that a client gets.
    pub(super) fn answered(&mut self, value: &impl Serialize) {
        let value = serde_json::to_string(value).unwrap();
        self.line(&format!("client: {value}"));
    }

    /// Adds output of the service.
    pub(super) fn logged(&mut self, text: &str) {
        self.line(&format!("service: {text}"));
    }

    /// Adds what the operator does without the command.
    pub(super) fn done(&mut self, text: &str) {
        self.line(&format!("# {text}"));
    }

    fn line(&mut self, text: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        writeln!(self.text, "{text}").unwrap();
    }

    /// Runs a command as it is typed, in a shell, and adds it and its output.
    pub(super) fn run(&mut self, typed: &str, code: i32) -> Ran {
        self.commands += 1;
        assert!(self.commands <= MOST_COMMANDS, "{}", self.text);
        // The table or prefix of a test is an option that the page does not need.
        let idem = format!(
            "idem() {{ \"$IDEM\" \"$@\" {}; }}",
            self.place.options.join(" ")
        );
        let output = Command::new("sh")
            .args(["-c", &format!("{idem}\n{typed}")])
            .current_dir(self.folder.path())
            .env("IDEM", env!("CARGO_BIN_EXE_idem"))
            .env("IDEM_STORE_URL", &self.place.url)
            .env("IDEM_ACTOR", "ann@desk")
            .output()
            .unwrap();
        let ran = Ran::new(output);
        assert_eq!(
            ran.code,
            Some(code),
            "{typed}: {ran:?}\nafter {}",
            self.text
        );
        let output = [&*ran.out, &*ran.err].concat();
        let lines: Vec<_> = output.trim_end().lines().map(str::trim_end).collect();
        self.line(&format!("$ {typed}\n{}", lines.join("\n")));
        if code != 0 {
            writeln!(self.text, "(exit code {code})").unwrap();
        }
        ran
    }

    /// Compares the transcript with the block of this name on the page. With `UPDATE_EXPECT=1`, writes the block if it
    /// differs.
    pub(super) fn is_on_the_page(&self, name: &str) {
        let _writing = WRITING.lock().unwrap_or_else(PoisonError::into_inner);
        let page = fs::read_to_string(PAGE).unwrap();
        let (before, block, after) = parts(&page, name);
        let compared = |text: &str| match self.has_counts {
            true => without_numbers(&comparable(text)),
            false => comparable(text),
        };
        let (expected, found) = (compared(block), compared(&self.text));
        if expected == found {
            return;
        }
        if std::env::var_os("UPDATE_EXPECT").is_some_and(|it| it == "1") {
            return fs::write(PAGE, [before, &self.text, after].concat()).unwrap();
        }
        panic!(
            "the page has\n{expected}\n\nbut this happened:\n{found}\n\n{}",
            self.text
        );
    }
}

/// Parts of the page before a block, the block, and after it. A comment before the block has its name.
fn parts<'a>(page: &'a str, name: &str) -> (&'a str, &'a str, &'a str) {
    let opening = format!("<!-- {name} -->\n```console\n");
    let begin = page.find(&opening).expect(&opening) + opening.len();
    let length = page[begin..].find("```").unwrap();
    let (before, rest) = page.split_at(begin);
    let (block, after) = rest.split_at(length);
    (before, block, after)
}

/// The text without what differs from run to run: times, durations, fencing tokens, and the widths of columns.
fn comparable(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(comparable_line).collect();
    lines.join("\n").trim_end().to_owned()
}

fn without_numbers(text: &str) -> String {
    text.chars().filter(|it| !it.is_ascii_digit()).collect()
}

fn comparable_line(line: &str) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut rest = line.split_whitespace().peekable();
    while let Some(word) = rest.next() {
        let bare = |word: &str| word.trim_matches(|it: char| "().,".contains(it)).to_owned();
        let is_unit = |word: &str| ["s", "min", "h", "d"].contains(&&*bare(word));
        if is_number(&bare(word)) && rest.peek().is_some_and(|it| is_unit(it)) {
            let unit = rest.next().unwrap_or_default();
            let duration = [
                if word.starts_with('(') { "(" } else { "" },
                "DURATION",
                unit.trim_start_matches(char::is_alphabetic),
            ];
            // A duration may have two units.
            match words.last() {
                Some(last) if last.ends_with("DURATION") => {
                    words.last_mut().unwrap().push_str(duration[2]);
                }
                _ => words.push(duration.concat()),
            }
        } else if is_date(word) && rest.peek().is_some_and(|it| is_time(it)) {
            rest.next();
            words.push("TIME".to_owned());
        } else if words
            .iter()
            .any(|it| ["token", "Retry-After:"].contains(&&**it))
            && is_number(word)
        {
            words.push("NUMBER".to_owned());
        } else {
            words.push(word.to_owned());
        }
    }
    words.join(" ")
}

fn is_number(word: &str) -> bool {
    !word.is_empty() && word.bytes().all(|it| it.is_ascii_digit())
}

fn is_date(word: &str) -> bool {
    word.len() == 10 && word.split('-').all(is_number)
}

fn is_time(word: &str) -> bool {
    word.len() == 8 && word.split(':').all(is_number)
}

#[test]
fn only_times_durations_and_tokens_are_left_out_of_a_comparison() {
    for (line, expected) in [
        (
            "expires   2026-11-23 14:15:30 UTC (in 29 d 23 h). From",
            "expires TIME UTC (in DURATION). From",
        ),
        (
            "It began 3 min 5 s ago, in attempt 2.",
            "It began DURATION ago, in attempt 2.",
        ),
        (
            "It began 3 s ago, in attempt 2.",
            "It began DURATION ago, in attempt 2.",
        ),
        ("token   17000000", "token NUMBER"),
        (
            "letters.post  order-1    1  2 s  rerun",
            "letters.post order-1 1 DURATION rerun",
        ),
        ("deleted      12", "deleted 12"),
    ] {
        assert_eq!(comparable_line(line), expected);
    }
}
