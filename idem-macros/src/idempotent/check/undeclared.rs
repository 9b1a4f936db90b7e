//! Finds a body that uses the attempt or the transaction, although no option declares it.
//!
//! It finds only uses that cannot mean a variable of the body. A name that occurs in another way may be declared in the
//! body. If it is not, the compiler reports it.

use proc_macro2::{Ident, TokenStream, TokenTree};

use crate::errors::Errors;
use crate::idempotent::function::Function;
use crate::idempotent::options::{Given, Options};

/// Reports `attempt.step(...)` without `attempt = attempt`, and declares it.
pub(super) fn check_undeclared_attempt(
    options: &mut Options,
    function: &Function,
    errors: &mut Errors,
) {
    const METHODS: &[&str] = &[
        "downstream_key",
        "is_live",
        "number",
        "step",
        "step_downstream_key",
        "step_tx",
    ];
    if options.attempt.is_some() || options.was_tried("attempt") {
        return;
    }
    let uses = Uses::of("attempt", function, |_, after| {
        matches!(after, [TokenTree::Punct(dot), TokenTree::Ident(method), ..]
            if dot.as_char() == '.' && METHODS.iter().any(|known| method == known))
    });
    if let Some(attempt) = uses.only() {
        errors.at(
            &attempt,
            "`attempt` is not declared: add the option `attempt = attempt`",
        );
        options.attempt = Some(Given::in_place_of("attempt", attempt));
    }
}

/// Reports `&mut *tx` without `tx = tx`, as an option that could not be parsed.
pub(super) fn check_undeclared_transaction(
    options: &mut Options,
    function: &Function,
    errors: &mut Errors,
) {
    if options.tx.is_some() || options.was_tried("tx") {
        return;
    }
    let uses = Uses::of("tx", function, |before, _| {
        matches!(before, [.., TokenTree::Punct(borrow), TokenTree::Ident(mutable), TokenTree::Punct(star)]
            if borrow.as_char() == '&' && mutable == "mut" && star.as_char() == '*')
    });
    if let Some(tx) = uses.only() {
        errors.at(
            &tx,
            "`tx` is not declared: add the option `tx = tx`, and the body runs in a transaction of the `store`",
        );
        options.unparsed.push("tx".to_owned());
    }
}

/// Occurrences of a name in the body.
#[derive(Default)]
struct Uses {
    first: Option<Ident>,
    /// Some occurrence may be something else.
    others: bool,
}

impl Uses {
    /// Finds the occurrences. `is_use` gets the tokens before and after one.
    fn of(
        name: &str,
        function: &Function,
        is_use: impl Fn(&[TokenTree], &[TokenTree]) -> bool,
    ) -> Self {
        let mut uses = Self::default();
        uses.find(name, function.body.stream(), &is_use);
        uses.others |= uses
            .first
            .as_ref()
            .is_some_and(|first| function.has_argument(first));
        uses
    }

    fn find(
        &mut self,
        name: &str,
        tokens: TokenStream,
        is_use: &impl Fn(&[TokenTree], &[TokenTree]) -> bool,
    ) {
        let tokens: Vec<_> = tokens.into_iter().collect();
        for (at, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Ident(ident) if ident == name => {
                    if is_use(&tokens[..at], &tokens[at + 1..]) {
                        self.first.get_or_insert_with(|| ident.clone());
                    } else {
                        self.others = true;
                    }
                }
                TokenTree::Group(group) => self.find(name, group.stream(), is_use),
                _ => {}
            }
        }
    }

    /// The first use, if there is nothing but uses.
    fn only(self) -> Option<Ident> {
        self.first.filter(|_| !self.others)
    }
}
