//! Expansion that the test of this name in `snapshots.rs` checks.

async fn place(&self, order: Order) -> Result<u64, OrderError> {
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_handle = ::idem_runtime::__private::transactions(&self.idem);
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_call = ::idem_runtime::__private::Call::new(
        "orders.place",
        &order.id,
        &::idem_runtime::__private::from_fn(|__idem_encoder| {
            {
                let __encoder: &mut ::idem_runtime::__private::Encoder = __idem_encoder;
                ::idem_runtime::__private::Encoder::map(
                    __encoder,
                    0usize
                        + ::idem_runtime::__private::Encoder::present(
                            ::idem_runtime::__private::argument(&order),
                        ),
                );
                ::idem_runtime::__private::Encoder::entry(
                    __encoder,
                    b"eorder",
                    ::idem_runtime::__private::argument(&order),
                );
            }
        }),
        ::idem_runtime::__private::Duration::from_secs(86400u64),
    );
    let mut __idem_running = match ::idem_runtime::__private::enter_transaction::<
        Result<u64, OrderError>,
        _,
    >(
            __idem_handle,
            __idem_call,
            ::idem_runtime::__private::stored_values::<
                <Result<u64, OrderError> as ::idem_runtime::__private::Returns>::Ok,
            >(),
            ::idem_runtime::__private::call_errors::<
                <Result<u64, OrderError> as ::idem_runtime::__private::Returns>::Err,
            >()
                .with_stored(
                    ::idem_runtime::__private::stored_errors::<
                        <Result<
                            u64,
                            OrderError,
                        > as ::idem_runtime::__private::Returns>::Err,
                    >(),
                ),
        )
        .await
    {
        ::idem_runtime::__private::Result::Ok(__idem_running) => __idem_running,
        ::idem_runtime::__private::Result::Err(__idem_answer) => {
            return ::idem_runtime::__private::returned::<
                Result<u64, OrderError>,
            >(__idem_answer);
        }
    };
    let attempt = __idem_running.attempt();
    let __idem_result: Result<u64, OrderError> = {
        let (__idem_driver, tx) = __idem_running.parts();
        ::idem_runtime::__private::drive_transaction::<
            Result<u64, OrderError>,
        >(
                __idem_driver,
                async move {
                    #[allow(
                        unreachable_code,
                        clippy::all,
                        clippy::pedantic,
                        clippy::nursery
                    )]
                    if false {
                        let __idem_never: Result<u64, OrderError> = loop {};
                        return __idem_never;
                    }
                    { insert(&mut *tx, order, attempt.number()).await }
                },
            )
            .await
    };
    ::idem_runtime::__private::returned::<
        Result<u64, OrderError>,
    >(
        ::idem_runtime::__private::finish_transaction::<
            Result<u64, OrderError>,
            _,
        >(
                __idem_running,
                __idem_result,
                |__idem_error| match __idem_error {
                    OrderError::SoldOut => ::idem_runtime::__private::ErrorKind::Terminal,
                    #[allow(unreachable_patterns)]
                    _ => ::idem_runtime::__private::ErrorKind::Transient,
                },
            )
            .await,
    )
}
