<#
Installs MTP Launcher for one user of Windows 10 (1809) or later, without an administrator; PowerShell 5 or later.

  install.ps1                 installs this release, or brings an older one up to it
  install.ps1 -From PLACE     the same, where the release's files are not beside this script: a folder, or an address
  install.ps1 -Offline DIR    the same from a folder of files, without a network
  install.ps1 -Uninstall      removes the program; models, settings and history stay

Each is run as: powershell -ExecutionPolicy Bypass -File install.ps1

The program comes to %LOCALAPPDATA%\Programs\mtp-launcher, its command to bin below that, and a shortcut into the
Start menu. A version is made ready beside the one in use and then used in its place, so an attempt that fails changes
nothing; run it again. All that is fetched is checked by SHA-256, and nothing of the program runs before its
maintainer's signature of manifest.json was verified. The steps are those of installer/linux/install.sh.

Variables: MTP_LAUNCHER_RELEASES, the same as -From; MTP_LAUNCHER_RELEASE_KEY, the public key of whoever signed a
release of your own; UV_DEFAULT_INDEX, UV_INDEX_URL or PIP_INDEX_URL, the package index;
HTTPS_PROXY, ALL_PROXY and NO_PROXY as always.
#>
param(
    [string] $From = '',
    [string] $Offline = '',
    [switch] $Uninstall
)

Set-StrictMode -Version 2.0
$ErrorActionPreference = 'Stop'
$ProgressPreference = 'SilentlyContinue' # PowerShell 5 fetches many times slower with its bar

# Written by installer/windows-shell/build-install.
$version = ''
$wheel = ''
$wheel_sha256 = ''
$lock_sha256 = ''
$releases = ''
$release_key = ''
$default_index = ''

$lock = "mtp_launcher-$version-requirements.txt"
$uv_version = '0.13.9'
$uv_wheel = "uv-$uv_version-py3-none-win_amd64.whl"
$uv_sha256 = '6a44b2ed8111d2f60d2b92627c5dccda3f7ed7570b18ce115e569cd68c28246b'
$pythons = '>=3.11,<3.15'
$room_mib = 900
$oldest_build = 17763 # what Qt 6.11 asks for
$network = 'Is there a network? A proxy is named by HTTPS_PROXY.'

$program = Join-Path $env:LOCALAPPDATA 'Programs\mtp-launcher'
$work = Join-Path $program 'work'
$commands = Join-Path $program 'bin'
$shortcut = Join-Path ([Environment]::GetFolderPath('Programs')) 'MTP Launcher.lnk'
$icon = Join-Path $program 'mtp-launcher.ico'
$run_key = 'HKCU:\Software\Microsoft\Windows\CurrentVersion\Run' # launcher/app/autostart.py
$run_value = 'MTP Launcher'
$variables = 'UV_CACHE_DIR', 'UV_TOOL_DIR', 'UV_TOOL_BIN_DIR', 'UV_PYTHON_INSTALL_DIR', 'UV_NO_PROGRESS',
    'UV_SYSTEM_CERTS', 'UV_DEFAULT_INDEX', 'UV_NO_CONFIG', 'VIRTUAL_ENV', 'CONDA_PREFIX', 'PYTHONPATH', 'PYTHONHOME',
    'UV_PYTHON', 'UV_TARGET', 'UV_LINK_MODE', 'UV_NO_CACHE', 'UV_EXCLUDE_NEWER', 'UV_CONFIG_FILE', 'UV_CONSTRAINT',
    'UV_OVERRIDE', 'UV_NO_BINARY', 'UV_WORKING_DIRECTORY', 'UV_PROJECT'

# Ends the script, which then prints what happened and what to do: Stop-With WHAT REMEDY
function Stop-With([string] $What, [string] $Remedy) {
    throw (New-Object System.OperationCanceledException "$What`n$Remedy")
}

# Ends a step that failed after something was begun: Stop-Step WHAT [REMEDY]
function Stop-Step([string] $What, [string] $Remedy = 'See above.') {
    Stop-With $What "$Remedy What was installed before is as it was; run this again to go on."
}

# The first of these that has a value.
function Get-First([string[]] $Values) {
    foreach ($each in $Values) { if ($each) { return $each } }
    return ''
}

function Assert-System {
    if ([Environment]::OSVersion.Platform -ne 'Win32NT') {
        Stop-With 'This installs on Windows.' 'For Linux there is install.sh.'
    }
    if ((Get-First $env:PROCESSOR_ARCHITEW6432, $env:PROCESSOR_ARCHITECTURE) -ne 'AMD64') {
        Stop-With 'There are builds for x64 processors only.' 'There is none for this computer yet.'
    }
    if ([Environment]::OSVersion.Version.Build -lt $oldest_build) {
        Stop-With 'This Windows is too old for Qt.' 'Windows 10 from version 1809 on is needed.'
    }
    $own = Get-ItemProperty -Path 'HKCU:\Software\MTP Launcher' -Name 'Folder' -ErrorAction SilentlyContinue
    if ($own -and (Test-Path -LiteralPath $own.Folder)) {
        Stop-With "MTP Launcher is installed by its setup program, in $($own.Folder)." `
            'Update it by that, or remove it first.'
    }
}

function Assert-Room {
    $drive = New-Object System.IO.DriveInfo ([IO.Path]::GetPathRoot($program))
    $free = [int64] ($drive.AvailableFreeSpace / 1MB)
    if ($free -lt $room_mib) {
        Stop-With "$program needs $room_mib MiB for the installation, and has $free MiB." `
            'Make room, and run this again.'
    }
}

# True if a process runs from a folder.
function Test-InUse([string] $Folder) {
    foreach ($process in Get-Process) {
        $path = try { $process.Path } catch { '' } # another user's may not be asked
        if ($path -and $path.StartsWith("$Folder\", [StringComparison]::OrdinalIgnoreCase)) { return $true }
    }
    return $false
}

# The folders of all versions that are here.
function Get-VersionFolder {
    Get-ChildItem -LiteralPath $program -Directory -Filter '*-*' | Where-Object { $_.Name -match '^[0-9]' } |
        ForEach-Object { $_.FullName }
}

function Remove-Folder([string] $Folder) {
    if (Test-Path -LiteralPath $Folder) { Remove-Item -LiteralPath $Folder -Recurse -Force }
}

function Test-Address([string] $Place) { return $Place -match '^https?://' }

# True if nobody in between can change what is downloaded from an address: https, or http from this computer.
function Test-Private([string] $Address) {
    $uri = New-Object System.Uri $Address
    return $uri.Scheme -eq 'https' -or ($uri.Scheme -eq 'http' -and $uri.IsLoopback)
}

# The folder or address where the wheel and the requirements of this release lie.
function Find-Release {
    if ($Offline) { return $Offline }
    $named = Get-First $From, $env:MTP_LAUNCHER_RELEASES
    if ($named -and (Test-Address $named)) {
        if (-not (Test-Private $named)) {
            Stop-With "$named is not an address that a release may come from." 'Use one that begins with https://.'
        }
        return $named.TrimEnd('/')
    }
    if ($named) {
        if (Test-Path -LiteralPath $named -PathType Container) { return (Resolve-Path -LiteralPath $named).ProviderPath }
        Stop-With "$named is neither a folder nor an address." 'An address begins with https://.'
    }
    if ($PSCommandPath) { # else it came through a pipe
        $here = Split-Path -Parent $PSCommandPath
        $parts = 'manifest.json', $wheel, $lock
        $beside = @($parts | Where-Object { Test-Path -LiteralPath (Join-Path $here $_) -PathType Leaf })
        if ($beside.Count -eq 3) { return $here }
    }
    if ($releases) { return $releases.TrimEnd('/') }
    Stop-With "The files of this release ($version) are not found." `
        "Put manifest.json, $wheel and $lock beside this script, or name their folder or address with -From."
}

# Leaves a file of a folder or an address elsewhere: Get-File PLACE NAME FILE [URL]
function Get-File([string] $Place, [string] $Name, [string] $File, [string] $Url = '') {
    if ($Url -or (Test-Address $Place)) {
        try { Invoke-WebRequest -UseBasicParsing -Uri (Get-First $Url, "$Place/$Name") -OutFile $File } catch {
            Stop-Step "$Name could not be fetched: $($_.Exception.Message)" $network
        }
    } else {
        $there = Join-Path $Place $Name
        if (-not (Test-Path -LiteralPath $there -PathType Leaf)) {
            Stop-Step "$Place holds no $Name." "It belongs to this release ($version)."
        }
        Copy-Item -LiteralPath $there -Destination $File -Force
    }
}

# Leaves NAME in the folder for work, and checked: Get-Checked NAME SHA256 PLACE [URL]
function Get-Checked([string] $Name, [string] $Sha256, [string] $Place, [string] $Url = '') {
    $file = Join-Path $work $Name
    Get-File $Place $Name $file $Url
    if ((Get-FileHash -LiteralPath $file -Algorithm SHA256).Hash -ne $Sha256) {
        Stop-Step "$Name is not the file of this release: its SHA-256 differs." `
            'Was the download cut short, or changed on its way?'
    }
}

# The address of uv's wheel, as the package index tells it.
function Get-UvAddress([string] $Index) {
    $page = "$Index/uv/"
    try { $listing = (Invoke-WebRequest -UseBasicParsing -Uri $page).Content } catch {
        Stop-Step "$Index does not tell where uv $uv_version is: $($_.Exception.Message)" $network
    }
    $found = [regex]::Match($listing, "[`"']([^`"'#]*" + [regex]::Escape($uv_wheel) + ")[`"'#]")
    if (-not $found.Success) { Stop-Step "$Index does not tell where uv $uv_version is." $network }
    return (New-Object System.Uri ((New-Object System.Uri $page), $found.Groups[1].Value)).AbsoluteUri
}

# Unpacks uv.exe out of its wheel, and returns its path.
function Expand-Uv {
    Add-Type -AssemblyName System.IO.Compression.FileSystem
    $uv = Join-Path $work 'uv.exe'
    $archive = [IO.Compression.ZipFile]::OpenRead((Join-Path $work $uv_wheel))
    try {
        $member = $archive.GetEntry("uv-$uv_version.data/scripts/uv.exe")
        [IO.Compression.ZipFileExtensions]::ExtractToFile($member, $uv, $true)
    } finally {
        $archive.Dispose()
    }
    return $uv
}

# Runs uv without its error output; $LASTEXITCODE is its exit code.
function Invoke-Quietly([string] $Uv, [string[]] $Arguments) {
    $ErrorActionPreference = 'Continue' # else PowerShell 5 treats error output of a program as an error of its own
    & $Uv @Arguments 2>$null
}

function Find-Python([string] $Uv) {
    $found = Invoke-Quietly $Uv 'python', 'find', '--no-project', '--system', '--no-python-downloads', $pythons
    if ($LASTEXITCODE -eq 0) { return $found }
    $none = 'There is no Python from 3.11 to 3.14 here'
    if ($Offline) { Stop-Step "$none." 'Install one, from python.org or the Microsoft Store.' }
    Write-Host "$none; fetching one for this program alone"
    & $Uv python install --no-bin --quiet 3.13
    if ($LASTEXITCODE -eq 0) {
        $found = Invoke-Quietly $Uv 'python', 'find', '--no-project', '--managed-python', '3.13'
        if ($LASTEXITCODE -eq 0) { return $found }
    }
    Stop-Step "$none, and none could be fetched." 'Install one, from python.org or the Microsoft Store.'
}

# Stops unless the maintainer signed the manifest, and it is of what this script installs.
# .NET cannot verify Ed25519. Python packages do, which this script downloaded and checked by their hashes.
function Confirm-Release([string] $Python, [string] $Release) {
    $manifest = "$work\manifest.json"
    $key = Get-First $env:MTP_LAUNCHER_RELEASE_KEY, $release_key
    [IO.File]::WriteAllText("$work\verify_signature.py", @'
# include ../verify_signature.py
'@)
    & $Python -I "$work\verify_signature.py" "$work\checked" $key $manifest
    if ($LASTEXITCODE -ne 0) {
        Stop-Step "manifest.json is not signed by this program's maintainer, so nothing of this release is used." `
            'Download all files of the release again. If this persists, report it to the project.'
    }
    $published = Get-Content -LiteralPath $manifest -Raw -Encoding UTF8 | ConvertFrom-Json
    if ($published.version -ne $version) {
        Stop-Step "$Release holds version $($published.version), and this install.ps1 is of $version." `
            'Take the install.ps1 from there.'
    }
    if ((Get-SignedSum $manifest $wheel) -ne $wheel_sha256 -or (Get-SignedSum $manifest $lock) -ne $lock_sha256) {
        Stop-Step 'The signed release has other files than this install.ps1 expects.' `
            'Download all files of the release again.'
    }
    Find-Installer $manifest $Release
}

# The SHA-256 of a file of the release: Get-SignedSum MANIFEST NAME
function Get-SignedSum([string] $Manifest, [string] $Name) {
    $contents = Get-Content -LiteralPath $Manifest -Raw -Encoding UTF8 | ConvertFrom-Json
    foreach ($artefact in $contents.artefacts) { if ($artefact.name -eq $Name) { return $artefact.sha256 } }
    return ''
}

# Test-Sum FILE SHA256
function Test-Sum([string] $File, [string] $Sha256) {
    if (-not $Sha256 -or -not (Test-Path -LiteralPath $File -PathType Leaf)) { return $false }
    return (Get-FileHash -LiteralPath $File -Algorithm SHA256).Hash -eq $Sha256
}

# Leaves the install.ps1 of the release in the folder for work, unless it is kept already.
function Find-Installer([string] $Manifest, [string] $Release) {
    $signed = Get-SignedSum $Manifest 'install.ps1'
    $found = Join-Path $work 'install.ps1'
    if ($PSCommandPath -and (Test-Sum $PSCommandPath $signed)) { # else it came through a pipe
        Copy-Item -LiteralPath $PSCommandPath -Destination $found -Force
    } elseif (-not (Test-Sum (Join-Path $program 'install.ps1') $signed)) {
        Get-File $Release 'install.ps1' $found
        if (-not (Test-Sum $found $signed)) {
            Stop-Step "$Release\install.ps1 is not the one of the release that was signed." `
                'Was it changed? Download all files of the release again.'
        }
    }
}

# An old release is signed, too: an attacker who hides newer ones from a user could offer it again.
function Assert-Order {
    foreach ($folder in Get-VersionFolder) {
        $other = (Split-Path -Leaf $folder) -replace '-[^-]*$', ''
        if ((Test-Path -LiteralPath "$folder\complete") -and [version] $version -lt [version] $other) {
            Stop-With "MTP Launcher $other is installed, and this is $version, which is older." `
                'To go back, run install.ps1 -Uninstall (models, settings and history stay), then run this again.'
        }
    }
}

# Install-Package UV PYTHON RELEASE OPTIONS-OF-UV
function Install-Package([string] $Uv, [string] $Python, [string] $Release, [string[]] $From) {
    # uv tool install checks no hashes. So everything is first downloaded into the cache with a check of its hash, and
    # then installed from there without a network.
    & $Uv pip install --quiet --python $Python --target "$work\checked" --require-hashes --only-binary :all: `
        @From -r "$work\$lock"
    if ($LASTEXITCODE -ne 0) { Stop-Step 'The packages could not be fetched.' }
    Confirm-Release $Python $Release
    Remove-Folder "$work\checked"
    & $Uv tool install --quiet --python $Python --offline --no-build --constraints "$work\$lock" @From `
        "$work\$wheel"
    if ($LASTEXITCODE -ne 0) { Stop-Step 'The packages could not be installed.' }
}

# True if the version in a folder is complete and starts.
function Test-Version([string] $Folder) {
    $command = "$Folder\bin\mtp-launcher.exe"
    if (-not (Test-Path -LiteralPath "$Folder\complete") -or -not (Test-Path -LiteralPath $command)) { return $false }
    try { Invoke-Quietly $command '--version' | Out-Null } catch { return $false }
    return $LASTEXITCODE -eq 0
}

# Installs this release into the folder, and marks it as complete.
function Initialize-Version([string] $Fresh, [string] $Index, [string] $Release) {
    if (Test-InUse $Fresh) { Stop-With "MTP Launcher $version is damaged, and still runs." 'Close it, and run this again.' }
    Remove-Folder $Fresh
    Remove-Folder $work
    New-Item -ItemType Directory -Force -Path $Fresh, $work | Out-Null
    Write-Host "Installing MTP Launcher $version from $(Get-First $Offline, 'the network (about 130 MB)')"
    foreach ($name in 'manifest.json', 'manifest.json.minisig') { Get-File $Release $name (Join-Path $work $name) }
    Get-Checked $wheel $wheel_sha256 $Release
    Get-Checked $lock $lock_sha256 $Release
    $address = ''
    if (-not $Offline) { $address = Get-UvAddress $Index }
    Get-Checked $uv_wheel $uv_sha256 $Offline $address
    $uv = Expand-Uv
    $null = & $Uv --version
    if ($LASTEXITCODE -ne 0) { Stop-Step 'uv, which installs the program, does not start here.' }
    $systemCerts = Get-First $env:UV_SYSTEM_CERTS, '1'
    foreach ($name in $variables) { Remove-Item -Path "Env:$name" -ErrorAction SilentlyContinue }
    $env:UV_CACHE_DIR = "$program\cache"
    $env:UV_TOOL_DIR = "$Fresh\tools"
    $env:UV_TOOL_BIN_DIR = "$Fresh\bin"
    $env:UV_PYTHON_INSTALL_DIR = "$program\python"
    $env:UV_NO_PROGRESS = '1'
    $env:UV_NO_CONFIG = '1' # nor what the user's uv.toml says
    $env:UV_SYSTEM_CERTS = $systemCerts
    $python = Find-Python $uv
    if ($Offline) {
        Install-Package $uv $python $Release '--no-index', '--find-links', $Offline
    } else {
        $env:UV_DEFAULT_INDEX = $Index
        Install-Package $uv $python $Release @()
    }
    $reported = & "$Fresh\bin\mtp-launcher.exe" --version
    if ($LASTEXITCODE -ne 0) { Stop-Step 'What was installed does not start.' }
    if ($reported -ne "mtp-launcher $version") { Stop-Step "What was installed calls itself $reported." }
    Copy-Item -LiteralPath "$work\manifest.json" -Destination "$Fresh\manifest.json"
    New-Item -ItemType File -Path "$Fresh\complete" | Out-Null
}

# The icon of the shortcut: an .ico file may hold one picture, as PNG.
function Write-Icon([string] $Fresh) {
    $picture = "$Fresh\tools\mtp-launcher\Lib\site-packages\launcher\_data\resources\desktop\mtp-launcher-256.png"
    $png = [IO.File]::ReadAllBytes($picture)
    [byte[]] $head = 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 1, 0, 32, 0
    $sizes = [BitConverter]::GetBytes([uint32] $png.Length) + [BitConverter]::GetBytes([uint32] 22)
    [IO.File]::WriteAllBytes($icon, [byte[]] ($head + $sizes + $png))
}

function Write-Entry([string] $Fresh) {
    Write-Icon $Fresh
    $link = (New-Object -ComObject WScript.Shell).CreateShortcut($shortcut)
    $link.TargetPath = "$Fresh\tools\mtp-launcher\Scripts\pythonw.exe"
    $link.Arguments = '-I -m launcher'
    $link.WorkingDirectory = $env:USERPROFILE
    $link.IconLocation = $icon
    $link.Description = 'Runs large language models on this computer, and shows how fast'
    $link.Save()
    New-Item -ItemType Directory -Force -Path $commands | Out-Null
    $folder = Split-Path -Leaf $Fresh
    # Relative, for the command interpreter reads such a file in a code page that may lack letters of the user's name.
    [IO.File]::WriteAllText("$commands\mtp-launcher.cmd", "@`"%~dp0..\$folder\bin\mtp-launcher.exe`" %*`r`n")
}

# For -Uninstall; and its presence tells `mtp-launcher update` that install.ps1 installed the program.
function Save-Installer {
    $found = Join-Path $work 'install.ps1'
    $kept = Join-Path $program 'install.ps1'
    if (Test-Path -LiteralPath $found) { Move-Item -LiteralPath $found -Destination $kept -Force }
}

# The Run key names the folder of the version that wrote it: put the new one there.
function Update-Autostart([string] $Fresh) {
    $found = Get-ItemProperty -Path $run_key -Name $run_value -ErrorAction SilentlyContinue
    if (-not $found) { return }
    $begin = [regex]::Escape("$program\") + '[^\\]+\\tools\\'
    $line = [regex]::Replace($found.$run_value, $begin, "$Fresh\tools\".Replace('$', '$$'))
    Set-ItemProperty -Path $run_key -Name $run_value -Value $line
}

function Install-Program {
    if (-not $version) {
        Stop-With 'This copy of install.ps1 lies in a checkout, and belongs to no release.' 'Take the one of a release.'
    }
    if (-not (Get-First $env:MTP_LAUNCHER_RELEASE_KEY, $release_key)) {
        Stop-With 'This build has no key to verify releases with.' `
            'Take install.ps1 from a release, or set MTP_LAUNCHER_RELEASE_KEY to a public key.'
    }
    $release = Find-Release
    Assert-System
    New-Item -ItemType Directory -Force -Path $program | Out-Null
    Assert-Room
    $both = [Text.Encoding]::ASCII.GetBytes("$wheel_sha256$lock_sha256")
    $digest = [BitConverter]::ToString([Security.Cryptography.SHA256]::Create().ComputeHash($both)).Replace('-', '')
    $fresh = Join-Path $program "$version-$($digest.Substring(0, 8).ToLowerInvariant())"
    $index = Get-First $env:UV_DEFAULT_INDEX, $env:UV_INDEX_URL, $env:PIP_INDEX_URL, $default_index
    try { # two at once would be in each other's way
        $alone = [IO.File]::Open((Join-Path $program 'lock'), 'OpenOrCreate', 'ReadWrite', 'None')
    } catch [IO.IOException] {
        Stop-With 'Another installation is under way.' 'Wait for its end.'
    }
    try {
        Assert-Order
        if (Test-Version $fresh) {
            Write-Host 'This version is installed already, so only its command and shortcut are renewed.'
            Remove-Folder $work
            New-Item -ItemType Directory -Force -Path $work | Out-Null
            Find-Installer "$fresh\manifest.json" $release
        } else {
            Initialize-Version $fresh $index.TrimEnd('/') $release
        }
        Write-Entry $fresh
        Save-Installer
        Update-Autostart $fresh
        foreach ($old in Get-VersionFolder) {
            if ($old -ne $fresh -and -not (Test-InUse $old)) { Remove-Folder $old }
        }
    } finally {
        try {
            Remove-Folder $work
            Remove-Folder (Join-Path $program 'cache')
            if (-not (Test-Path -LiteralPath "$fresh\complete")) { Remove-Folder $fresh }
        } finally {
            $alone.Dispose() # a shell that runs this script would else hold it until it ends
        }
    }
    Write-Host "MTP Launcher $version is installed. It is in the Start menu, and as: $commands\mtp-launcher.cmd"
    if (";$env:PATH;" -notlike "*;$commands;*") {
        Write-Host "Your PATH does not name $commands. Until it does, type the whole path."
    }
}

function Uninstall-Program {
    if (Test-Path -LiteralPath $program) {
        if (Test-InUse $program) {
            Stop-With 'MTP Launcher is running.' 'Close its window, or run: mtp-launcher stop. Then run this again.'
        }
        $login = Get-ItemProperty -Path $run_key -Name $run_value -ErrorAction SilentlyContinue
        # It may be another installation's.
        if ($login -and $login.$run_value.IndexOf("$program\", [StringComparison]::OrdinalIgnoreCase) -ge 0) {
            Remove-ItemProperty -Path $run_key -Name $run_value
        }
        Remove-Folder $program
    }
    if (Test-Path -LiteralPath $shortcut) {
        $target = (New-Object -ComObject WScript.Shell).CreateShortcut($shortcut).TargetPath
        $ours = $target.StartsWith("$program\", [StringComparison]::OrdinalIgnoreCase)
        if ($ours) { Remove-Item -LiteralPath $shortcut }
    }
    Write-Host 'MTP Launcher is removed.'
    $data = Join-Path $env:LOCALAPPDATA 'mtp-launcher'
    if (Test-Path -LiteralPath $data) { Write-Host "Yours, and left: $data" }
}

# Windows PowerShell 5 does not look at the variables that name a proxy.
function Set-Proxy {
    $named = Get-First $env:HTTPS_PROXY, $env:ALL_PROXY
    if ($PSVersionTable.PSVersion.Major -lt 6 -and $named -like 'http*') {
        $proxy = New-Object System.Net.WebProxy $named
        $proxy.BypassProxyOnLocal = $true
        $besides = @("$env:NO_PROXY" -split '[, ]+' | ForEach-Object { $_.TrimStart('*', '.') } | Where-Object { $_ })
        $proxy.BypassList = [string[]] @($besides | ForEach-Object { '[/.]' + [regex]::Escape($_) + '(:\d+)?/?$' })
        [Net.WebRequest]::DefaultWebProxy = $proxy
    }
}

$before = @{}
foreach ($name in $variables) { $before[$name] = [Environment]::GetEnvironmentVariable($name) }
$proxyBefore = [Net.WebRequest]::DefaultWebProxy
$encodingBefore = [Console]::OutputEncoding
$code = 0
try {
    # uv writes paths in UTF-8; the console's code page would change letters of many names.
    try { [Console]::OutputEncoding = New-Object System.Text.UTF8Encoding $false } catch { $null = $_ } # no console
    Set-Proxy
    # Windows PowerShell 5 may have only old versions of TLS enabled, which servers refuse today.
    [Net.ServicePointManager]::SecurityProtocol = [Net.ServicePointManager]::SecurityProtocol -bor `
        [Net.SecurityProtocolType]::Tls12
    if ($Offline) { $Offline = (Resolve-Path -LiteralPath $Offline).ProviderPath }
    if ($Uninstall) { Uninstall-Program } else { Install-Program }
} catch [System.OperationCanceledException] {
    $code = 1
    $lines = $_.Exception.Message -split "`n", 2
    [Console]::Error.WriteLine("Error: $($lines[0])`r`n       $($lines[1])")
} catch {
    $code = 1
    [Console]::Error.WriteLine("Error: $($_.Exception.Message)")
    [Console]::Error.WriteLine('       What was installed before is as it was; run this again to go on.')
} finally {
    foreach ($name in $variables) { [Environment]::SetEnvironmentVariable($name, $before[$name]) }
    [Net.WebRequest]::DefaultWebProxy = $proxyBefore
    try { [Console]::OutputEncoding = $encodingBefore } catch { $null = $_ }
}
if ($PSCommandPath) { exit $code } # else it runs inside a shell, which is not ours to end
