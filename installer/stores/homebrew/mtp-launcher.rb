# Homebrew on Linux. The packages come by uv from the package index, each by its hash in the requirements.
class MtpLauncher < Formula
  desc "Run and watch language models with MTP speculative decoding"
  homepage "@homepage@"
  url "@url@/@wheel@", using: :nounzip
  sha256 "@wheel_sha256@"
  license "MIT"

  depends_on "uv" => :build
  depends_on :linux
  depends_on "python@3.13"

  resource "requirements" do
    url "@url@/@requirements@", using: :nounzip
    sha256 "@requirements_sha256@"
  end

  def install
    python = Formula["python@3.13"].opt_bin/"python3.13"
    system "uv", "venv", "--python", python, libexec
    resource("requirements").stage do
      system "uv", "pip", "install", "--python", libexec/"bin/python", "--require-hashes", "--only-binary", ":all:",
             "-r", "@requirements@"
    end
    system "uv", "pip", "install", "--python", libexec/"bin/python", "--no-deps", "--offline", buildpath/"@wheel@"
    bin.install_symlink libexec/"bin/mtp-launcher"
    generate_completions_from_executable(bin/"mtp-launcher", "completion", shells: [:bash, :zsh, :fish])
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/mtp-launcher --version")
    assert_match "drafts accepted", shell_output("#{bin}/mtp-launcher demo --headless")
  end
end
