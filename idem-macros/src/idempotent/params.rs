//! Which parameters are fingerprinted, and under what names; patterns are taken whole.

use proc_macro2::{Ident, TokenStream};
use quote::ToTokens;
use syn::Pat;
use syn::ext::IdentExt;

use super::Errors;
use super::function::{self, AsyncTrait, Function};
use super::model::{Param, PatternBinding};
use super::parse::{Key, OnCrash, Options, Skip};
use super::tokens::{bare_word, bindings, borrowing, local, mentions, name_pattern};
use crate::suggest::suggest;

/// The parameters, seen by the fingerprint.
#[derive(Default)]
pub(super) struct Params {
    pub(super) fingerprinted: Vec<Param>,
    pub(super) borrows: Vec<PatternBinding>,
    pub(super) opens: Vec<PatternBinding>,
}

impl Params {
    /// Sorts out which parameters are fingerprinted, and takes patterns whole that are, or that the options look into.
    pub(super) fn take(
        options: &Options,
        function: &mut Function,
        mut async_trait: Option<&mut AsyncTrait>,
        errors: &mut Errors,
    ) -> Self {
        let mut params = Self::default();
        let skips = options.skip.as_ref().map_or(&[][..], |skip| &skip.value);
        let mut found = vec![false; skips.len()];
        let mut names = vec![];
        let mut parts = vec![];
        let bare = bare_words(options);
        let replaced = options.fingerprint.is_some();
        let mentioned = option_tokens(options);

        for (position, (index, typed)) in function::typed(&mut function.sig).enumerate() {
            let rewritten = async_trait.as_deref_mut().filter(|_| {
                named(&typed.pat).is_some_and(|name| function::is_positional(name, index))
            });
            let mut whole = Whole::of(&mut typed.pat, rewritten, position);
            let name = match &whole {
                Whole::Named(name) => name.unraw().to_string(),
                _ => position.to_string(),
            };
            let mut skipped = options.skip_all.is_some()
                || matches!(&whole, Whole::Named(name) if bare.contains(&name));
            for (skip, found) in skips.iter().zip(&mut found) {
                if skip.to_token_stream().to_string().trim_start_matches("r#") == name {
                    *found = true;
                    skipped = true;
                }
            }
            names.push(name.clone());
            let bindings = whole.bindings();
            let looked_into = bindings
                .iter()
                .any(|part| mentions(mentioned.clone(), part));
            parts.extend(bindings.into_iter().map(|part| (part, position)));
            let fingerprinted = !skipped && !replaced;
            if !fingerprinted && !looked_into {
                continue;
            }
            let cfg: Vec<_> = typed
                .attrs
                .iter()
                .filter(|attr| attr.path().is_ident("cfg"))
                .cloned()
                .collect();
            let (ident, pat) = whole.take();
            if let Some(pat) = pat {
                if looked_into {
                    params.borrows.push(PatternBinding {
                        cfg: cfg.clone(),
                        pat: borrowing(&pat),
                        ident: ident.clone(),
                    });
                }
                params.opens.push(PatternBinding {
                    cfg: cfg.clone(),
                    pat,
                    ident: ident.clone(),
                });
            }
            if fingerprinted {
                params.fingerprinted.push(Param {
                    name,
                    ident,
                    ty: (*typed.ty).clone(),
                    cfg,
                });
            }
        }
        for (skip, found) in skips.iter().zip(found) {
            if !found {
                unknown_skip(skip, &names, &parts, errors);
            }
        }
        check_skips(options, errors);
        params
    }
}

/// How the whole of a parameter can be had.
enum Whole<'a> {
    /// By its name.
    Named(Ident),
    /// By a new name in the place of the pattern.
    Pattern(&'a mut Pat, Ident),
    /// By the name that `#[async_trait]` gave it, if its prelude does not match it against the pattern.
    Rewritten(&'a mut AsyncTrait, Ident),
}

impl<'a> Whole<'a> {
    fn of(pat: &'a mut Pat, rewritten: Option<&'a mut AsyncTrait>, position: usize) -> Self {
        match (named(pat).cloned(), rewritten) {
            (Some(name), Some(rewritten)) => Self::Rewritten(rewritten, name),
            (Some(name), None) => Self::Named(name),
            (None, _) => Self::Pattern(pat, local(&format!("__idem_arg{position}"))),
        }
    }

    /// The names that the pattern binds, where there is one.
    fn bindings(&self) -> Vec<Ident> {
        match self {
            Self::Named(_) => vec![],
            Self::Pattern(pat, _) => bindings(pat),
            Self::Rewritten(rewritten, name) => {
                rewritten.pattern(name).map(bindings).unwrap_or_default()
            }
        }
    }

    /// The name of the whole, and the pattern that it is to be matched against in the body.
    fn take(&mut self) -> (Ident, Option<Pat>) {
        match self {
            Self::Named(name) => (name.clone(), None),
            Self::Pattern(pat, name) => {
                let pat = std::mem::replace(&mut **pat, name_pattern(name));
                // Nothing is what `_` binds.
                (
                    name.clone(),
                    Some(pat).filter(|pat| !matches!(pat, Pat::Wild(_))),
                )
            }
            Self::Rewritten(rewritten, name) => (name.clone(), rewritten.take_pattern(name)),
        }
    }
}

fn unknown_skip(skip: &Skip, names: &[String], parts: &[(Ident, usize)], errors: &mut Errors) {
    let given = skip.to_token_stream().to_string();
    if given == "self" {
        // It is left out anyway; to say so is no mistake.
        return;
    }
    if let Some((_, position)) = parts.iter().find(|(part, _)| *part == given) {
        return errors.at(
            skip,
            format!(
                "`{given}` is a part of a pattern, and patterns are fingerprinted whole: leave the whole argument \
                 out by its position, `skip({position})`"
            ),
        );
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    errors.at(
        skip,
        match suggest(&given, &names) {
            Some(meant) => format!("there is no argument `{given}`, did you mean `{meant}`?"),
            None if names.is_empty() => {
                format!("there is no argument `{given}`: this function has none")
            }
            None => format!(
                "there is no argument `{given}`; the arguments are `{}`",
                names.join("`, `")
            ),
        },
    );
}

fn check_skips(options: &Options, errors: &mut Errors) {
    if let (Some(skip), Some(_)) = (&options.skip, &options.skip_all) {
        errors.at(
            &skip.option,
            "`skip_all` leaves out these as well: remove `skip(...)`",
        );
    }
    if options.fingerprint.is_some() {
        let skip = options.skip.as_ref().map(|skip| &skip.option);
        let skip_all = options.skip_all.as_ref().map(|skip| &skip.option);
        for option in skip.into_iter().chain(skip_all) {
            errors.at(
                option,
                format!(
                    "`fingerprint = ...` replaces the arguments, so there is nothing to leave out: remove `{option}`"
                ),
            );
        }
    }
}

/// The parameters that stand as a bare word in an option that identifies the call.
fn bare_words(options: &Options) -> Vec<&Ident> {
    let key = options.key.as_ref().and_then(|key| match &key.value {
        Key::Expr(expr) => Some(expr),
        Key::Fingerprint => None,
    });
    let others = [&options.store, &options.scope].into_iter().flatten();
    let exprs = key.into_iter().chain(others.map(|given| &given.value));
    let tx = options.tx.as_ref().map(|tx| &tx.value);
    exprs.filter_map(bare_word).chain(tx).collect()
}

/// The tokens of all options that are evaluated before the body.
fn option_tokens(options: &Options) -> TokenStream {
    let mut tokens = TokenStream::new();
    if let Some(Key::Expr(expr)) = options.key.as_ref().map(|key| &key.value) {
        expr.to_tokens(&mut tokens);
    }
    if let Some(OnCrash::Reconcile(expr)) = options.on_crash.as_ref().map(|given| &given.value) {
        expr.to_tokens(&mut tokens);
    }
    for given in [
        &options.fingerprint,
        &options.ttl,
        &options.store,
        &options.scope,
        &options.recover_with,
        &options.name,
        &options.lease,
        &options.wait,
    ]
    .into_iter()
    .flatten()
    {
        given.value.to_tokens(&mut tokens);
    }
    tokens
}

/// The name of a parameter that is not a pattern.
fn named(pat: &Pat) -> Option<&Ident> {
    match pat {
        Pat::Ident(pat) if pat.by_ref.is_none() && pat.subpat.is_none() => Some(&pat.ident),
        Pat::Paren(pat) => named(&pat.pat),
        _ => None,
    }
}
