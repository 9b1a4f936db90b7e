//! Expansion that the test of this name in `snapshots.rs` checks.

/// Charges once.
pub async fn charge(
    &self,
    tenant: &str,
    key: &Key,
    charge: Charge,
) -> Result<Receipt, ChargeError> {
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_handle = ::idem_runtime::__private::handle(&self.idem);
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_call = ::idem_runtime::__private::Call::new(
            "charges.create",
            &key,
            &::idem_runtime::__private::from_fn(|__idem_encoder| {
                {
                    let __encoder: &mut ::idem_runtime::__private::Encoder = __idem_encoder;
                    ::idem_runtime::__private::Encoder::map(
                        __encoder,
                        0usize
                            + ::idem_runtime::__private::Encoder::present(
                                ::idem_runtime::__private::argument(&charge),
                            ),
                    );
                    ::idem_runtime::__private::Encoder::entry(
                        __encoder,
                        b"fcharge",
                        ::idem_runtime::__private::argument(&charge),
                    );
                }
            }),
            ::idem_runtime::__private::Duration::from_secs(86400u64),
        )
        .scope(&tenant);
    let mut __idem_running = match ::idem_runtime::__private::enter::<
        Result<Receipt, ChargeError>,
    >(
            __idem_handle,
            __idem_call,
            ::idem_runtime::__private::stored_values::<
                <Result<Receipt, ChargeError> as ::idem_runtime::__private::Returns>::Ok,
            >(),
            ::idem_runtime::__private::call_errors::<
                <Result<Receipt, ChargeError> as ::idem_runtime::__private::Returns>::Err,
            >()
                .with_stored(
                    ::idem_runtime::__private::stored_errors::<
                        <Result<
                            Receipt,
                            ChargeError,
                        > as ::idem_runtime::__private::Returns>::Err,
                    >(),
                ),
        )
        .await
    {
        ::idem_runtime::__private::Result::Ok(__idem_running) => __idem_running,
        ::idem_runtime::__private::Result::Err(__idem_answer) => {
            return ::idem_runtime::__private::returned::<
                Result<Receipt, ChargeError>,
            >(__idem_answer);
        }
    };
    let __idem_result: Result<Receipt, ChargeError> = ::idem_runtime::__private::drive::<
        Result<Receipt, ChargeError>,
    >(
            &mut __idem_running,
            async move {
                #[allow(
                    unreachable_code,
                    clippy::all,
                    clippy::pedantic,
                    clippy::nursery
                )]
                if false {
                    let __idem_never: Result<Receipt, ChargeError> = loop {};
                    return __idem_never;
                }
                { self.bank.pay(charge).await }
            },
        )
        .await;
    ::idem_runtime::__private::returned::<
        Result<Receipt, ChargeError>,
    >(
        ::idem_runtime::__private::finish::<
            Result<Receipt, ChargeError>,
        >(
                __idem_running,
                __idem_result,
                |__idem_error| match __idem_error {
                    ChargeError::Declined { .. } => {
                        ::idem_runtime::__private::ErrorKind::Terminal
                    }
                    #[allow(unreachable_patterns)]
                    _ => ::idem_runtime::__private::ErrorKind::Transient,
                },
            )
            .await,
    )
}
