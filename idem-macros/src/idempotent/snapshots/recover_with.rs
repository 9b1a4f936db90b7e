//! Expansion that the test of this name in `snapshots.rs` checks.

async fn checkout(&self, order: Order) -> Result<u64, CheckoutError> {
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_handle = ::idem_runtime::__private::handle(&self.idem);
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_call = ::idem_runtime::__private::Call::new(
            "orders.checkout",
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
            ::idem_runtime::__private::Duration::from_secs(604800u64),
        )
        .recover_with(::idem_runtime::__private::recovery_input(&order));
    let mut __idem_running = match ::idem_runtime::__private::enter::<
        Result<u64, CheckoutError>,
    >(
            __idem_handle,
            __idem_call,
            ::idem_runtime::__private::stored_values::<
                <Result<u64, CheckoutError> as ::idem_runtime::__private::Returns>::Ok,
            >(),
            ::idem_runtime::__private::call_errors::<
                <Result<u64, CheckoutError> as ::idem_runtime::__private::Returns>::Err,
            >(),
        )
        .await
    {
        ::idem_runtime::__private::Result::Ok(__idem_running) => __idem_running,
        ::idem_runtime::__private::Result::Err(__idem_answer) => {
            return ::idem_runtime::__private::returned::<
                Result<u64, CheckoutError>,
            >(__idem_answer);
        }
    };
    let attempt = __idem_running.attempt();
    let __idem_result: Result<u64, CheckoutError> = ::idem_runtime::__private::drive::<
        Result<u64, CheckoutError>,
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
                    let __idem_never: Result<u64, CheckoutError> = loop {};
                    return __idem_never;
                }
                { self.pay(order, attempt.number()).await }
            },
        )
        .await;
    ::idem_runtime::__private::returned::<
        Result<u64, CheckoutError>,
    >(
        ::idem_runtime::__private::finish::<
            Result<u64, CheckoutError>,
        >(
                __idem_running,
                __idem_result,
                |_| ::idem_runtime::__private::ErrorKind::Transient,
            )
            .await,
    )
}
