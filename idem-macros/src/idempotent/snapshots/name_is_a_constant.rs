//! Expansion that the test of this name in `snapshots.rs` checks.

async fn place(key: &str) -> Result<Receipt, OrderError> {
    use ::idem_runtime::__private as __idem_private;
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_handle = __idem_private::default_handle();
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_call = __idem_private::Call::new(
            __idem_private::operation_name::<
                <Result<Receipt, OrderError> as __idem_private::Returns>::Ok,
                __idem_private::NoError,
                _,
            >(const { PLACE }),
            __idem_private::usable_as_key(&key),
            &__idem_private::from_fn(|__idem_encoder| {
                {
                    let __encoder: &mut __idem_private::Encoder = __idem_encoder;
                    __idem_private::Encoder::map(__encoder, 0usize);
                }
            }),
            __idem_private::Duration::from_secs(86400u64),
        )
        .named_function({
            static __IDEM_FUNCTION: __idem_private::NamedFunction = __idem_private::NamedFunction::new(
                ::core::concat!(::core::module_path!(), "::", "place"),
            );
            &__IDEM_FUNCTION
        });
    let mut __idem_running = match __idem_private::enter::<
        Result<Receipt, OrderError>,
    >(
            __idem_handle,
            __idem_call,
            __idem_private::values_of_operation::<
                <Result<Receipt, OrderError> as __idem_private::Returns>::Ok,
                __idem_private::NoError,
                _,
            >(
                __idem_private::stored_values::<
                    <Result<Receipt, OrderError> as __idem_private::Returns>::Ok,
                >(),
                &const { PLACE },
            ),
            __idem_private::call_errors::<
                <Result<Receipt, OrderError> as __idem_private::Returns>::Err,
            >(),
        )
        .await
    {
        __idem_private::Result::Ok(__idem_running) => __idem_running,
        __idem_private::Result::Err(__idem_answer) => {
            return __idem_private::returned::<Result<Receipt, OrderError>>(__idem_answer);
        }
    };
    let __idem_result: Result<Receipt, OrderError> = __idem_private::drive::<
        Result<Receipt, OrderError>,
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
                    let __idem_never: Result<Receipt, OrderError> = loop {};
                    return __idem_never;
                }
                { order(key).await }
            },
        )
        .await;
    __idem_private::returned::<
        Result<Receipt, OrderError>,
    >(
        __idem_private::finish::<
            Result<Receipt, OrderError>,
        >(__idem_running, __idem_result, |_| __idem_private::Finality::Transient)
            .await,
    )
}
