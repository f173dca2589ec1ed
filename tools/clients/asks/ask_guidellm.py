"""guidellm."""

from report import FOLDER, SCRATCH, URL, asks, main, run


@asks("a benchmark of 4 requests, one after the other")
def _():
    run(
        "guidellm", "run", "--backend", f"kind=openai_http,target={URL}",
        "--profile", "kind=synchronous", "--constraint", "kind=max_requests,count=4",
        "--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=16",
        "--tokenizer", f"kind=huggingface_auto,model={FOLDER}",
        "--output", f"kind=json,path={SCRATCH}/report.json", "--disable-console",
    )  # fmt: skip


main()
