//! Expansion that the test of this name in `snapshots.rs` checks.

::core::compile_error! {
    "unknown option `kye`, did you mean `key`?"
}
::core::compile_error! {
    "this function is already `#[idempotent]`: write one attribute with all options"
}
::core::compile_error! {
    "`24` has no unit: write `24ms`, `24s`, `24m`, `24h` or `24d`"
}
async fn charge(key: &str) -> Result<u64, Error> {
    use ::idem_runtime::__private as __idem_private;
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_handle = __idem_private::default_handle();
    #[allow(clippy::all, clippy::pedantic, clippy::nursery)]
    let __idem_call = __idem_private::free_function(
        __idem_private::Call::new(
            ::core::concat!(::core::module_path!(), "::", "charge"),
            __idem_private::usable_as_key(""),
            &__idem_private::from_fn(|__idem_encoder| {
                {
                    let __encoder: &mut __idem_private::Encoder = __idem_encoder;
                    __idem_private::Encoder::map(__encoder, 0usize);
                }
            }),
            __idem_private::Duration::from_secs(0u64),
        ),
        ::core::concat!(::core::module_path!(), "::", "charge"),
        {
            #[allow(unused_imports)]
            use __idem_private::not_free as charge;
            {
                #[allow(unused_imports)]
                use self::*;
                let _ = charge;
            }
            fn __idem_nested() {}
            &__idem_nested
        },
    );
    let mut __idem_running = match __idem_private::enter::<
        Result<u64, Error>,
    >(
            __idem_handle,
            __idem_call,
            __idem_private::stored_values::<
                <Result<u64, Error> as __idem_private::Returns>::Ok,
            >(),
            __idem_private::call_errors::<
                <Result<u64, Error> as __idem_private::Returns>::Err,
            >(),
        )
        .await
    {
        __idem_private::Result::Ok(__idem_running) => __idem_running,
        __idem_private::Result::Err(__idem_answer) => {
            return __idem_private::returned::<Result<u64, Error>>(__idem_answer);
        }
    };
    let attempt = __idem_running.attempt();
    let __idem_result: Result<u64, Error> = __idem_private::drive::<
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
                { Ok(attempt.number()) }
            },
        )
        .await;
    __idem_private::returned::<
        Result<u64, Error>,
    >(
        __idem_private::finish::<
            Result<u64, Error>,
        >(__idem_running, __idem_result, |_| __idem_private::Finality::Transient)
            .await,
    )
}
