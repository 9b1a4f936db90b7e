//! Checks `version`, `upgrade` and `downgrade`.

use crate::errors::Errors;
use crate::idempotent::options::{Options, value};

/// Reports versions that cannot be read, and functions without a version.
pub(super) fn check_versions(options: &Options, errors: &mut Errors) {
    let Some(version) = &options.version else {
        if let Some(upgrade) = &options.upgrade
            && !options.was_tried("version")
        {
            errors.at(
                &upgrade.option,
                format!(
                    "`upgrade` needs the version that it leads to: add `version = {}`",
                    upgrade.value.conversions.len() + 1
                ),
            );
        }
        return;
    };
    let number = version.value.number;
    let Some(upgrade) = value(options.upgrade.as_ref()) else {
        if options.was_tried("upgrade") || (number == 1 && options.downgrade.is_some()) {
            return;
        }
        let message = match number {
            1 => "`version = 1` has no effect: results are of version 1 unless the function says otherwise; remove it"
                .to_owned(),
            2 => "the results of version 1 could not be read: add `upgrade = ...` with a function from the old result to the \
                  new one, or `upgrade = _` if none is left"
                .to_owned(),
            _ => format!(
                "the results of earlier versions could not be read: add `upgrade = [...]` with {} functions, each from the \
                 result of one version to that of the next one, and `_` for a version of which no result is left",
                number - 1
            ),
        };
        errors.at(&version.option, message);
        return;
    };
    if number == 1 {
        errors.at(
            upgrade,
            "there is no version before `version = 1`: if the result has changed for the first time, write `version = 2`",
        );
        return;
    }
    let (expected, found) = (number - 1, upgrade.conversions.len());
    if usize::try_from(expected) != Ok(found) {
        errors.at(
            upgrade,
            format!(
                "`version = {number}` needs {expected} of these, and this has {found}: one function for each earlier version, \
                 that of version 1 first, and `_` for a version of which no result is left"
            ),
        );
        return;
    }
    let forgotten = upgrade.conversions.iter().rposition(Option::is_none);
    let first = upgrade.conversions.iter().position(Option::is_some);
    if let (Some(forgotten), Some(first)) = (forgotten, first)
        && first < forgotten
    {
        errors.at(
            upgrade,
            "`_` stands for the oldest versions, of which no result is left: write it before the functions, or give each \
             version its function",
        );
    }
}
