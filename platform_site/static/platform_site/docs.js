// Draws the API reference. A file of its own, since the page's policy lets no script stand in the page.
const place = document.getElementById("reference");
window.ui = SwaggerUIBundle({
  url: place.dataset.schema,
  domNode: place,
  deepLinking: true,
  filter: true,
  persistAuthorization: false, // a token pasted here is forgotten with the page
  tryItOutEnabled: true,
  displayRequestDuration: true,
  defaultModelsExpandDepth: 0,
  docExpansion: "list",
  validatorUrl: null, // would send the description to somebody else's server
});
