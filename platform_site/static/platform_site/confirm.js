// Disables the buttons of a form until every confirmation is typed. The server checks the same again.
for (const form of document.querySelectorAll("form:has([data-expected])")) {
  const inputs = form.querySelectorAll("[data-expected]");
  const buttons = form.querySelectorAll("[type=submit]");
  const update = () => {
    const missing = [...inputs].filter((input) => input.value.trim() !== input.dataset.expected);
    for (const button of buttons) {
      button.disabled = missing.length > 0;
      button.title = missing.length ? `Type ${missing[0].dataset.expected} to confirm` : "";
    }
  };
  form.addEventListener("input", update);
  update();
}
