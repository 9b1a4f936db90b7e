//! Errors of DynamoDB as errors of a store.
//!
//! The SDK's errors contain whole answers, and with `ALL_OLD` an answer contains the stored item. Nothing of them is kept but
//! the name of the error, which DynamoDB defines.

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_dynamodb::operation::transact_write_items::TransactWriteItemsError;
use idem_store::StoreErrorKind as Kind;
use idem_store::{StoreError, Timestamp};

/// Names of the errors by which DynamoDB refuses a request because of its rate.
const THROTTLED: [&str; 5] = [
    "ProvisionedThroughputExceededException",
    "RequestLimitExceeded",
    "ThrottlingException",
    "ProvisionedThroughputExceeded",
    "ThrottlingError",
];

/// Failure of a request.
pub(crate) struct Failed {
    pub(crate) error: StoreError,
    /// True if DynamoDB refused the request because of its rate.
    pub(crate) is_throttled: bool,
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self {
            error,
            is_throttled: false,
        }
    }
}

/// Translates the error of a request.
pub(crate) fn failed<E, R>(error: &SdkError<E, R>) -> Failed
where
    E: ProvideErrorMetadata,
{
    match error {
        SdkError::TimeoutError(_) => StoreError::new(
            Kind::Timeout,
            "DynamoDB did not answer in time; it is unknown whether the request took effect",
        )
        .into(),
        SdkError::DispatchFailure(_) | SdkError::ResponseError(_) => StoreError::new(
            Kind::Unavailable,
            "no connection to DynamoDB, or it was lost; check the network, the region and the credentials",
        )
        .into(),
        SdkError::ServiceError(it) => {
            let error = it.err();
            let is_too_large = error.message().is_some_and(|it| it.contains("size"));
            of_code(error.code().unwrap_or_default(), is_too_large)
        }
        _ => unbuilt().into(),
    }
}

/// Translates the error of a transaction: that of the first part which has one.
pub(crate) fn transaction_failed<R>(error: &SdkError<TransactWriteItemsError, R>) -> Failed {
    if let Some(TransactWriteItemsError::TransactionCanceledException(it)) =
        error.as_service_error()
    {
        let mut reasons = it.cancellation_reasons().iter();
        if let Some(reason) = reasons.find(|it| it.code().is_some_and(|it| it != "None")) {
            let is_too_large = reason.message().is_some_and(|it| it.contains("size"));
            return of_code(reason.code().unwrap_or_default(), is_too_large);
        }
    }
    failed(error)
}

/// Error of DynamoDB with this name.
fn of_code(code: &str, is_too_large: bool) -> Failed {
    let is_throttled = THROTTLED.contains(&code);
    let (kind, problem) = match code {
        _ if is_throttled => (
            Kind::Unavailable,
            "DynamoDB throttles this table; send fewer requests, or raise the capacity of the table and its indexes",
        ),
        "TransactionConflictException"
        | "TransactionConflict"
        | "TransactionInProgressException"
        | "TransactionCanceledException"
        | "ReplicatedWriteConflictException" => (
            Kind::Conflict,
            "another transaction changes this record; try again",
        ),
        "ResourceNotFoundException" => (
            Kind::Schema,
            "the table or an index is missing; create it with `create_table` or the template of this crate",
        ),
        "AccessDeniedException"
        | "UnrecognizedClientException"
        | "InvalidSignatureException"
        | "MissingAuthenticationTokenException"
        | "MissingAuthenticationToken"
        | "IncompleteSignatureException"
        | "ExpiredTokenException" => (
            Kind::Denied,
            "DynamoDB refuses these credentials; give them the rights of the policy of this crate",
        ),
        "ItemCollectionSizeLimitExceededException" | "LimitExceededException" => (
            Kind::Full,
            "a limit of DynamoDB is reached; raise it, or store less",
        ),
        "ValidationException" | "ValidationError" | "ItemCollectionSizeLimitExceeded"
            if is_too_large =>
        {
            (
                Kind::TooLarge,
                "the steps of the record are larger than an item of DynamoDB; save fewer or smaller steps",
            )
        }
        "InternalServerError" | "InternalFailure" | "ServiceUnavailable" | "" => (
            Kind::Unavailable,
            "DynamoDB failed to answer the request; try again",
        ),
        _ => (
            Kind::Other,
            "DynamoDB refused a request; look up the name of the error",
        ),
    };
    // The name is one of DynamoDB's own. Anything else might quote a value.
    let is_name = !code.is_empty() && code.bytes().all(|it| it.is_ascii_alphanumeric());
    let error = match is_name {
        true => StoreError::new(kind, format!("{problem} ({code})")),
        false => StoreError::new(kind, problem),
    };
    Failed {
        error,
        is_throttled,
    }
}

/// Error of a request that the SDK cannot build.
pub(crate) fn unbuilt() -> StoreError {
    StoreError::new(
        Kind::Other,
        "the SDK cannot build the request; check the configuration of the client",
    )
}

pub(crate) fn corrupt() -> StoreError {
    StoreError::new(
        Kind::Corrupt,
        "an item of the table holds what this store does not write; find out who else writes to this table, and repair the item",
    )
}

pub(crate) fn conflict() -> StoreError {
    StoreError::new(
        Kind::Conflict,
        "the record changed at each try because of concurrent calls; try again",
    )
}

pub(crate) fn no_date() -> StoreError {
    StoreError::new(
        Kind::Other,
        "the answers have no `Date`, so the time of the server is unknown; check the endpoint and the proxies before it",
    )
}

pub(crate) fn foreign_cursor() -> StoreError {
    StoreError::new(
        Kind::Other,
        "the cursor is not one of this store, list from the beginning",
    )
}

/// Seconds since 1970 of a time, for the attribute that DynamoDB's expiry reads. Rounded up: an item never expires early.
pub(crate) fn seconds(at: Timestamp) -> i64 {
    at.as_micros().div_euclid(1_000_000).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn throttling_and_conflicts_are_retryable_and_named() {
        for code in THROTTLED {
            let failed = of_code(code, false);
            assert!(failed.is_throttled && failed.error.is_retryable());
            assert!(failed.error.to_string().contains(code));
        }
        let conflict = of_code("TransactionConflict", false);
        assert!(conflict.error.is_retryable() && !conflict.is_throttled);
        let denied = of_code("AccessDeniedException", false).error;
        assert!(denied.kind() == Kind::Denied && !denied.is_retryable());
        let large = of_code("ValidationException", true).error;
        assert_eq!(large.kind(), Kind::TooLarge);
        assert_eq!(
            of_code("ValidationException", false).error.kind(),
            Kind::Other
        );
    }

    #[test]
    fn a_code_that_is_no_name_is_not_shown() {
        let error = of_code("key=secret", false).error;
        assert!(!format!("{error} {error:?}").contains("secret"));
    }
}
