<#
Proves the Windows half on a real Windows with the Python that is first on PATH: types, and what .ci/wine.d proves under
wine, which are the commands, the engine, the job object, and what comes from the network.

  .ci\windows.ps1
#>
Set-StrictMode -Version 2.0
$ErrorActionPreference = 'Stop'
Set-Location (Split-Path $PSScriptRoot)

# Stops where a program has failed: PowerShell goes on by itself.
function Invoke-Program([string] $Program, [string[]] $Arguments) {
    & $Program @Arguments
    if ($LASTEXITCODE -ne 0) { throw "$Program $Arguments ended with $LASTEXITCODE" }
}

Invoke-Program python @('-m', 'venv', '.venv')
$python = '.venv\Scripts\python.exe'
Invoke-Program $python @('-m', 'pip', 'install', '--quiet', '--require-hashes', '--only-binary', ':all:', '-r', 'requirements-dev.lock')
Invoke-Program $python @('-m', 'pip', 'install', '--quiet', '--no-deps', '--no-build-isolation', '--editable', '.')
Invoke-Program $python @('-m', 'mypy', '-p', 'launcher')
$starter = & $python -c 'import pathlib, pip; print(pathlib.Path(pip.__file__).parent / "_vendor" / "distlib" / "t64.exe")'
$report = & $python -X utf8 .ci\wine.d\prove.py tests\fakes\llama_server.py
$report += & $python -X utf8 .ci\wine.d\fetch.py tests\fakes $starter
$report
foreach ($part in 'prove', 'fetch') {
    if (-not ($report | Where-Object { $_.StartsWith("done $part") })) { throw "$part.py did not come to its end" }
}
if ($report | Where-Object { $_.StartsWith('FAIL') }) { throw 'some proofs failed' }
