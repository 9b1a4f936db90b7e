//! Arguments: which of them are fingerprinted, and how arguments that are patterns are bound.
//!
//! A pattern is fingerprinted as a whole. The function then takes the argument by a name, and the pattern is matched
//! where the body begins.

use proc_macro2::{Ident, TokenStream};
use syn::ext::IdentExt;
use syn::{Attribute, Pat, PatType, Signature, Type};

use super::function::{self, AsyncTrait, Function};
use super::options::Options;
use super::tokens::{bare_word, bindings, borrowing, local, mentions, name_pattern};
use super::values::{Skip, Value as _};

/// Argument as it is written, without `self`.
pub(super) struct Argument {
    /// Name, or the position if the argument is a pattern.
    pub(super) name: String,
    /// Names that the pattern binds.
    pub(super) bindings: Vec<Ident>,
    /// Name of the whole argument. A new one if the argument is a pattern.
    ident: Ident,
    pattern: Pattern,
}

/// Place of an argument's pattern.
enum Pattern {
    /// The argument is a name.
    None,
    Signature,
    /// The prelude that `#[async_trait]` has generated in the body.
    Prelude,
}

/// Arguments of a function, without `self`.
pub(super) fn arguments(sig: &Signature, async_trait: Option<&AsyncTrait>) -> Vec<Argument> {
    function::typed(sig)
        .enumerate()
        .map(|(position, (index, typed))| Argument::new(position, index, typed, async_trait))
        .collect()
}

impl Argument {
    /// The `index` counts `self`, the `position` does not.
    fn new(
        position: usize,
        index: usize,
        typed: &PatType,
        async_trait: Option<&AsyncTrait>,
    ) -> Self {
        let Some(name) = plain_name(&typed.pat) else {
            return Self {
                name: position.to_string(),
                bindings: bindings(&typed.pat),
                ident: local(&format!("arg{position}")),
                pattern: Pattern::Signature,
            };
        };
        let ident = name.clone();
        match async_trait {
            Some(async_trait) if function::is_positional(name, index) => Self {
                name: position.to_string(),
                bindings: async_trait.pattern(name).map(bindings).unwrap_or_default(),
                ident,
                pattern: Pattern::Prelude,
            },
            _ => Self {
                name: name.unraw().to_string(),
                bindings: vec![],
                ident,
                pattern: Pattern::None,
            },
        }
    }

    /// Names by which expressions of the options refer to the argument.
    pub(super) fn names(&self) -> impl Iterator<Item = &Ident> {
        let whole = matches!(self.pattern, Pattern::None).then_some(&self.ident);
        whole.into_iter().chain(&self.bindings)
    }

    /// Returns whether the argument is this name, and not a pattern.
    pub(super) fn is_named(&self, name: &Ident) -> bool {
        matches!(self.pattern, Pattern::None) && self.ident == *name
    }

    /// Returns whether `skip(...)` names this argument.
    pub(super) fn is_named_by(&self, skip: &Skip) -> bool {
        skip.text() == self.name
    }

    /// Returns whether the tokens contain a name that the pattern binds.
    fn is_looked_into(&self, tokens: &TokenStream) -> bool {
        let mut bindings = self.bindings.iter();
        bindings.any(|name| mentions(tokens.clone(), name))
    }

    /// Replaces the pattern with the name of the whole argument. Returns the pattern, if there is one.
    fn take_pattern(
        &self,
        typed: &mut PatType,
        async_trait: Option<&mut AsyncTrait>,
    ) -> Option<Pat> {
        match self.pattern {
            Pattern::None => None,
            Pattern::Signature => {
                let pat = std::mem::replace(&mut *typed.pat, name_pattern(&self.ident));
                // `_` binds nothing.
                (!matches!(pat, Pat::Wild(_))).then_some(pat)
            }
            Pattern::Prelude => async_trait?.take_pattern(&self.ident),
        }
    }
}

/// Name of an argument that is not a pattern.
fn plain_name(pat: &Pat) -> Option<&Ident> {
    match pat {
        Pat::Ident(pat) if pat.by_ref.is_none() && pat.subpat.is_none() => Some(&pat.ident),
        Pat::Paren(pat) => plain_name(&pat.pat),
        _ => None,
    }
}

/// Argument that is fingerprinted.
pub(super) struct Param {
    /// Name in the fingerprinted map.
    pub(super) name: String,
    /// Name in the function.
    pub(super) ident: Ident,
    pub(super) ty: Type,
    /// `#[cfg]` attributes.
    pub(super) cfg: Vec<Attribute>,
}

impl Param {
    fn binding(&self, pat: Pat, used_by_options: bool) -> PatternBinding {
        PatternBinding {
            cfg: self.cfg.clone(),
            pat,
            ident: self.ident.clone(),
            used_by_options,
        }
    }
}

/// `let` statement that matches an argument against its pattern.
pub(super) struct PatternBinding {
    pub(super) cfg: Vec<Attribute>,
    pub(super) pat: Pat,
    pub(super) ident: Ident,
    /// Options use names of the pattern, so the body need not use them.
    pub(super) used_by_options: bool,
}

/// Arguments, sorted by their use.
#[derive(Default)]
pub(super) struct Params {
    pub(super) fingerprinted: Vec<Param>,
    /// Patterns whose names the options use, bound to borrows.
    pub(super) borrowed: Vec<PatternBinding>,
    /// Patterns that the body begins with.
    pub(super) owned: Vec<PatternBinding>,
}

impl Params {
    /// Sorts the arguments. Replaces each pattern that is fingerprinted, or whose names the options use, with a name.
    pub(super) fn take(
        options: &Options,
        function: &mut Function,
        mut async_trait: Option<&mut AsyncTrait>,
    ) -> Self {
        let arguments = arguments(&function.sig, async_trait.as_deref());
        let typed = function::typed_mut(&mut function.sig);
        let expressions = options.expressions();
        let mut params = Self::default();
        for (argument, typed) in arguments.into_iter().zip(typed) {
            let fingerprinted = is_fingerprinted(options, &argument);
            let looked_into = argument.is_looked_into(&expressions);
            if !fingerprinted && !looked_into {
                continue;
            }
            let pat = argument.take_pattern(typed, async_trait.as_deref_mut());
            let param = Param {
                name: argument.name,
                ident: argument.ident,
                ty: (*typed.ty).clone(),
                cfg: cfg(&typed.attrs),
            };
            if looked_into {
                let borrowed = pat.as_ref().map(borrowing);
                params
                    .borrowed
                    .extend(borrowed.map(|pat| param.binding(pat, true)));
            }
            params
                .owned
                .extend(pat.map(|pat| param.binding(pat, looked_into)));
            if fingerprinted {
                params.fingerprinted.push(param);
            }
        }
        params
    }
}

/// Returns whether an argument is a part of the fingerprint.
pub(super) fn is_fingerprinted(options: &Options, argument: &Argument) -> bool {
    options.fingerprint.is_none() && options.skip_all.is_none() && !is_left_out(options, argument)
}

/// Returns whether an option leaves this argument out by its name: `skip`, or an option whose whole value it is.
pub(super) fn is_left_out(options: &Options, argument: &Argument) -> bool {
    let mut skip = options.skip.iter().flat_map(|skip| &skip.value);
    let identifies_the_call = bare_words(options)
        .into_iter()
        .any(|word| argument.is_named(word));
    identifies_the_call || skip.any(|skip| argument.is_named_by(skip))
}

/// Names that are the whole of an option that identifies the call or its store, such as `key = id`.
fn bare_words(options: &Options) -> Vec<&Ident> {
    let key = options.key.as_ref().and_then(|key| key.value.expression());
    let others = [&options.store, &options.scope, &options.deadline];
    let others = others.into_iter().flatten();
    let exprs = key.into_iter().chain(others.map(|given| &given.value));
    let tx = options.tx.as_ref().map(|tx| &tx.value);
    exprs.filter_map(bare_word).chain(tx).collect()
}

fn cfg(attrs: &[Attribute]) -> Vec<Attribute> {
    let cfg = attrs.iter().filter(|attr| attr.path().is_ident("cfg"));
    cfg.cloned().collect()
}
