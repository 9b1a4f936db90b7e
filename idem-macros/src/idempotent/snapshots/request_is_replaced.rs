//! Expansion that the test of this name in `snapshots.rs` checks.

async fn order(key: &str, order: Order) -> Result<u64, Error> {
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_handle = ::idem_runtime::__private::default_handle();
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_call = ::idem_runtime::__private::free_function(
        ::idem_runtime::__private::Call::new(
            ::core::concat!(::core::module_path!(), "::", "order"),
            &key,
            ::idem_runtime::__private::argument(&(&order.lines, order.total())),
            ::idem_runtime::__private::Duration::from_secs(86400u64),
        ),
        ::core::concat!(::core::module_path!(), "::", "order"),
        {
            fn __idem_nested() {}
            &__idem_nested
        },
    );
    let mut __idem_running = match ::idem_runtime::__private::enter::<
        Result<u64, Error>,
    >(
            __idem_handle,
            __idem_call,
            ::idem_runtime::__private::stored_values::<
                <Result<u64, Error> as ::idem_runtime::__private::Returns>::Ok,
            >(),
            ::idem_runtime::__private::call_errors::<
                <Result<u64, Error> as ::idem_runtime::__private::Returns>::Err,
            >(),
        )
        .await
    {
        ::idem_runtime::__private::Result::Ok(__idem_running) => __idem_running,
        ::idem_runtime::__private::Result::Err(__idem_answer) => {
            return ::idem_runtime::__private::returned::<
                Result<u64, Error>,
            >(__idem_answer);
        }
    };
    let __idem_result: Result<u64, Error> = ::idem_runtime::__private::drive::<
        Result<u64, Error>,
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
                    let __idem_never: Result<u64, Error> = loop {};
                    return __idem_never;
                }
                { place(order).await }
            },
        )
        .await;
    ::idem_runtime::__private::returned::<
        Result<u64, Error>,
    >(
        ::idem_runtime::__private::finish::<
            Result<u64, Error>,
        >(
                __idem_running,
                __idem_result,
                |_| ::idem_runtime::__private::ErrorKind::Transient,
            )
            .await,
    )
}
