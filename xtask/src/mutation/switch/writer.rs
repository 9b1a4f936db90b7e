//! Finds the places of mutants in a file, and writes them there.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use proc_macro2::Span;
use syn::spanned::Spanned as _;
use syn::visit::{self, Visit};
use syn::{BinOp, Expr, UnOp};

use super::{Genre, Mutant, Place, Position, Switched};

/// Mutants at one place, by their numbers.
type Here<'m> = Vec<(usize, &'m Mutant)>;

pub(super) struct Writer<'t> {
    text: &'t str,
    /// Offset of each line.
    lines: Vec<usize>,
    /// Mutants whose place was not found yet.
    open: BTreeMap<(Genre, Position), Here<'t>>,
    /// Number of enclosing constants, where nothing can be chosen at run time.
    constants: usize,
    /// In the order in which their places were visited: outer before inner.
    edits: Vec<Edit>,
}

/// Text around an expression.
struct Edit {
    range: Range<usize>,
    before: Text,
    /// Replaces the operator.
    operator: Option<(Range<usize>, String)>,
    after: Text,
}

/// Pieces of text. Some belong to one mutant.
#[derive(Default)]
struct Text(Vec<(String, Option<usize>)>);

impl Text {
    fn plain(mut self, text: impl Into<String>) -> Self {
        self.0.push((text.into(), None));
        self
    }

    fn of(mut self, mutant: usize, text: String) -> Self {
        self.0.push((text, Some(mutant)));
        self
    }

    /// Adds `if CHOSEN { ... } else` for each mutant.
    fn choices(self, here: &Here<'_>, text: impl Fn(&Mutant) -> String) -> Self {
        here.iter().fold(self, |it, (number, mutant)| {
            it.plain(format!("if {} {{ ", is_on(*number)))
                .of(*number, text(mutant))
                .plain(" } else ")
        })
    }

    fn mutants(&self) -> impl Iterator<Item = usize> {
        self.0.iter().filter_map(|(_, mutant)| *mutant)
    }
}

fn is_on(mutant: usize) -> String {
    format!("crate::mutation_switch::is_on({mutant})")
}

impl<'t> Writer<'t> {
    /// Begins with the mutants of a text, which have their numbers.
    pub(super) fn new(text: &'t str, mutants: &[(usize, &'t Mutant)]) -> Self {
        let starts = text.match_indices('\n').map(|(at, _)| at + 1);
        let mut writer = Self {
            text,
            lines: std::iter::once(0).chain(starts).collect(),
            open: BTreeMap::new(),
            constants: 0,
            edits: Vec::new(),
        };
        for (number, mutant) in mutants {
            let place = (mutant.genre, mutant.span.start);
            let here = writer.open.entry(place).or_default();
            here.push((*number, *mutant));
        }
        writer
    }

    /// Writes the mutants into the text, which this is.
    pub(super) fn switched(mut self, file: &syn::File) -> Switched {
        self.visit_file(file);
        self.write()
    }

    fn offset(&self, position: Position) -> usize {
        let line = self.lines[position.line - 1];
        let rest = self.text[line..].char_indices();
        let column = rest.map(|(at, _)| at).nth(position.column - 1);
        column.map_or(self.text.len(), |at| line + at)
    }

    fn range(&self, span: Span) -> Range<usize> {
        self.offset(span.start().into())..self.offset(span.end().into())
    }

    /// The mutants at this place, unless it is in a constant.
    fn take(&mut self, genre: Genre, start: impl Into<Position>) -> Option<Here<'t>> {
        if self.constants > 0 {
            return None;
        }
        self.open.remove(&(genre, start.into()))
    }

    fn edit(&mut self, range: Range<usize>, before: Text, after: Text) {
        self.edits.push(Edit {
            range,
            before,
            operator: None,
            after,
        });
    }

    /// A function that returns another value. Two values of an unnamed type would be of two types.
    fn body(&mut self, sig: &syn::Signature, block: &syn::Block) {
        let Some(first) = block.stmts.first() else {
            return;
        };
        if self.text[self.range(sig.output.span())].contains("impl ") {
            return;
        }
        let start = first.span().start();
        let Some(here) = self.take(Genre::FnValue, start) else {
            return;
        };
        let at = self.offset(start.into());
        let begin = here.iter().fold(Text::default(), |it, (number, mutant)| {
            it.plain(format!("if {} {{ return ", is_on(*number)))
                .of(*number, format!("({})", mutant.replacement))
                .plain("; } ")
        });
        self.edit(at..at, begin, Text::default());
    }

    fn binary(&mut self, binary: &syn::ExprBinary) {
        let place = Span::start(&binary.op.span());
        if has_let(&binary.left) || has_let(&binary.right) {
            return;
        }
        let Some(here) = self.take(Genre::BinaryOperator, place) else {
            return;
        };
        let range = self.range(binary.span());
        let operator = self.range(binary.op.span());
        let written = &self.text[operator.clone()];
        let (left, right) = (
            self.range(binary.left.span()),
            self.range(binary.right.span()),
        );
        let (left, right) = (&self.text[left], &self.text[right]);
        let (before, between, after) = match binary.op {
            // `a || b` is `!(!a && !b)`.
            BinOp::And(_) | BinOp::Or(_) => {
                let number = here[0].0;
                let on = is_on(number);
                (
                    Text::default().of(number, format!("({on} ^ (({on} ^ (")),
                    format!(")) {written} ({on} ^ ("),
                    Text::default().of(number, "))))".to_owned()),
                )
            }
            BinOp::Eq(_)
            | BinOp::Ne(_)
            | BinOp::Lt(_)
            | BinOp::Le(_)
            | BinOp::Gt(_)
            | BinOp::Ge(_) => (
                Text::default().plain("(match (&("),
                "), &(".to_owned(),
                Text::default()
                    .plain(")) { (l, r) => ")
                    .choices(&here, |it| format!("*l {} *r", it.replacement))
                    .plain(format!("{{ *l {written} *r }} }})")),
            ),
            _ if written.ends_with('=') => (
                Text::default()
                    .choices(&here, |it| format!("{left} {} {right}", it.replacement))
                    .plain("{ "),
                written.to_owned(),
                Text::default().plain(" }"),
            ),
            _ => (
                Text::default().plain("(match (("),
                "), (".to_owned(),
                Text::default()
                    .plain(")) { (l, r) => ")
                    .choices(&here, |it| format!("l {} r", it.replacement))
                    .plain(format!("{{ l {written} r }} }})")),
            ),
        };
        self.edits.push(Edit {
            range,
            before,
            operator: Some((operator, between)),
            after,
        });
    }

    /// Writes the edits into the text. Mutants whose place was not found are left out.
    fn write(self) -> Switched {
        let mut pieces: Vec<(usize, isize, usize, Text)> = Vec::new();
        let mut whole = Vec::new();
        for (order, edit) in self.edits.into_iter().enumerate() {
            let mutants: Vec<_> = edit.before.mutants().chain(edit.after.mutants()).collect();
            whole.push((edit.range.clone(), mutants));
            let order = order as isize;
            // What ends at a place comes before what begins there; inner expressions end first.
            pieces.push((edit.range.start, order + 1, edit.range.start, edit.before));
            if let Some((range, between)) = edit.operator {
                pieces.push((range.start, 0, range.end, Text::default().plain(between)));
            }
            pieces.push((edit.range.end, -order - 1, edit.range.end, edit.after));
        }
        pieces.sort_by_key(|(at, order, ..)| (*at, *order));
        let mut switched = Switched {
            text: String::with_capacity(self.text.len() * 2),
            mutants: BTreeSet::new(),
            ranges: Vec::new(),
        };
        let mut moved = BTreeMap::new();
        let mut done = 0;
        for (at, _, until, text) in pieces {
            switched.text.push_str(&self.text[done..at]);
            done = until;
            moved.entry(at).or_insert(switched.text.len());
            for (piece, mutant) in text.0 {
                let start = switched.text.len();
                switched.text.push_str(&piece);
                if let Some(mutant) = mutant {
                    switched.mutants.insert(mutant);
                    let range = start..switched.text.len();
                    switched.ranges.push((range, vec![mutant]));
                }
            }
            moved.insert(usize::MAX - at, switched.text.len());
        }
        switched.text.push_str(&self.text[done..]);
        for (range, mutants) in whole {
            let (start, end) = (
                moved.get(&range.start),
                moved.get(&(usize::MAX - range.end)),
            );
            if let (Some(start), Some(end)) = (start, end) {
                switched.ranges.push((*start..*end, mutants));
            }
        }
        switched
    }
}

/// True for a condition that binds names, which only an `if` or `while` can have.
fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(both) => has_let(&both.left) || has_let(&both.right),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Writer<'_> {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        let is_constant = usize::from(function.sig.constness.is_some());
        self.constants += is_constant;
        self.body(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
        self.constants -= is_constant;
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        let is_constant = usize::from(function.sig.constness.is_some());
        self.constants += is_constant;
        self.body(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
        self.constants -= is_constant;
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.body(&function.sig, block);
        }
        visit::visit_trait_item_fn(self, function);
    }

    fn visit_item_const(&mut self, item: &'ast syn::ItemConst) {
        self.constants += 1;
        visit::visit_item_const(self, item);
        self.constants -= 1;
    }

    fn visit_impl_item_const(&mut self, item: &'ast syn::ImplItemConst) {
        self.constants += 1;
        visit::visit_impl_item_const(self, item);
        self.constants -= 1;
    }

    fn visit_item_static(&mut self, item: &'ast syn::ItemStatic) {
        self.constants += 1;
        visit::visit_item_static(self, item);
        self.constants -= 1;
    }

    fn visit_type(&mut self, ty: &'ast syn::Type) {
        self.constants += 1;
        visit::visit_type(self, ty);
        self.constants -= 1;
    }

    fn visit_expr_repeat(&mut self, repeat: &'ast syn::ExprRepeat) {
        self.visit_expr(&repeat.expr);
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        self.binary(binary);
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast syn::ExprUnary) {
        if matches!(unary.op, UnOp::Not(_))
            && let Some(here) = self.take(Genre::UnaryOperator, unary.op.span().start())
        {
            let number = here[0].0;
            let before = Text::default().of(number, format!("({} ^ ", is_on(number)));
            let after = Text::default().of(number, ")".to_owned());
            self.edit(self.range(unary.span()), before, after);
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        if let Some(here) = self.take(Genre::MatchArm, arm.span().start()) {
            let number = here[0].0;
            let end = self.range(arm.pat.span()).end;
            let guard = Text::default().of(number, format!(" if !{} ", is_on(number)));
            self.edit(end..end, Text::default(), guard);
        }
        self.guard(arm);
        visit::visit_arm(self, arm);
    }
}

impl Writer<'_> {
    /// A guard that always or never holds. Its place is in the arm, before the body.
    fn guard(&mut self, arm: &syn::Arm) {
        let (start, end) = (arm.span().start().into(), arm.span().end().into());
        let places = self.open.keys().copied();
        let inside = |(genre, at): &(Genre, Position)| {
            *genre == Genre::MatchArmGuard && (start..end).contains(at)
        };
        // Guards of arms within this one come later.
        let Some((_, at)) = places.filter(inside).min_by_key(|(_, at)| *at) else {
            return;
        };
        if at > Position::from(arm.body.span().start()) {
            return;
        }
        let Some(here) = self.take(Genre::MatchArmGuard, at) else {
            return;
        };
        let Place { start, end } = here[0].1.span;
        let range = self.offset(start)..self.offset(end);
        if self.text[range.clone()].contains("let ") {
            return;
        }
        let before = Text::default()
            .plain("(")
            .choices(&here, |it| it.replacement.clone())
            .plain("{ ");
        self.edit(range, before, Text::default().plain(" })"));
    }
}
