//! Expansion that the test of this name in `snapshots.rs` checks.

async fn place(key: &str) -> Result<Receipt, OrderError> {
    use ::idem_runtime::__private as __idem_private;
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_handle = __idem_private::default_handle();
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_call = __idem_private::free_function(
        __idem_private::Call::new(
            ::core::concat!(::core::module_path!(), "::", "place"),
            __idem_private::usable_as_key(&key),
            &__idem_private::from_fn(|__idem_encoder| {
                {
                    let __encoder: &mut __idem_private::Encoder = __idem_encoder;
                    __idem_private::Encoder::map(__encoder, 0usize);
                }
            }),
            __idem_private::Duration::from_secs(86400u64),
        ),
        ::core::concat!(::core::module_path!(), "::", "place"),
        {
            #[allow(unused_imports)]
            use __idem_private::not_free as place;
            {
                #[allow(unused_imports)]
                use self::*;
                let _ = place;
            }
            fn __idem_nested() {}
            &__idem_nested
        },
    );
    let mut __idem_running = match __idem_private::enter::<
        Result<Receipt, OrderError>,
    >(
            __idem_handle,
            __idem_call,
            __idem_private::versioned_values::<
                <Result<Receipt, OrderError> as __idem_private::Returns>::Ok,
                4u32,
            >(|__idem_stored| match __idem_private::StoredResult::version(
                __idem_stored,
            ) {
                4u32 => __idem_private::StoredResult::read(__idem_stored),
                2u32 => {
                    let __idem_conversion1 = __idem_private::conversion::<
                        _,
                        <Result<Receipt, OrderError> as __idem_private::Returns>::Ok,
                    >(Receipt::of_third);
                    let __idem_conversion0 = __idem_private::conversion_before(
                        __idem_conversion1,
                        second_to_third,
                    );
                    __idem_private::Result::map(
                        __idem_private::read_converted(
                            __idem_stored,
                            __idem_conversion0,
                        ),
                        __idem_conversion1,
                    )
                }
                3u32 => {
                    let __idem_conversion0 = __idem_private::conversion::<
                        _,
                        <Result<Receipt, OrderError> as __idem_private::Returns>::Ok,
                    >(Receipt::of_third);
                    __idem_private::read_converted(__idem_stored, __idem_conversion0)
                }
                5u32 => {
                    let __idem_conversion0 = __idem_private::conversion::<
                        _,
                        <Result<Receipt, OrderError> as __idem_private::Returns>::Ok,
                    >(to_fourth);
                    __idem_private::read_converted(__idem_stored, __idem_conversion0)
                }
                _ => __idem_private::unknown_version(__idem_stored, 4u32),
            }),
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
